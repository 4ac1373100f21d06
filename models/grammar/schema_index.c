/* Finds members of large objects by the hashes of their keys. A schema may have tens of thousands of members,
 * and cJSON keeps them in a list. */
#include <string.h>

#include "common/hash.h"
#include "common/progress.h"
#include "models/grammar/schema.h"

enum { WALKED = 16 }; /* members that are compared one by one before an index is used */

struct td_member_index {
  const cJSON *object;
  const cJSON **slots;
  uint32_t n_slots;
  td_member_index *next; /* in the same bucket */
};

static uint32_t slot_of(const td_schema *s, const td_member_index *x, const char *key)
{
  uint32_t k = (uint32_t)td_hash_bytes(s->seed, key, strlen(key)) & (x->n_slots - 1);
  while (x->slots[k] && strcmp(x->slots[k]->string, key) != 0)
    k = (k + 1) & (x->n_slots - 1);
  return k;
}

static const td_member_index *make_index(td_schema *s, const cJSON *object, td_member_index **bucket)
{
  uint32_t n = 0;
  for (const cJSON *m = object->child; m; m = m->next)
    n++;
  td_member_index *x = td_arena_alloc(&s->b->arena, sizeof *x);
  uint32_t n_slots = 64;
  while (n_slots < 2 * n)
    n_slots *= 2;
  const cJSON **slots = td_arena_alloc_array(&s->b->arena, n_slots, sizeof(const cJSON *));
  if (!x || !slots) {
    s->b->failed = true;
    return NULL;
  }
  *x = (td_member_index){object, slots, n_slots, *bucket};
  td_progress_add(n / 4);
  for (const cJSON *m = object->child; m; m = m->next) {
    uint32_t k = slot_of(s, x, m->string);
    if (!x->slots[k]) /* the first member with a name counts, as in cJSON */
      x->slots[k] = m;
  }
  *bucket = x;
  return x;
}

const cJSON *td_schema_get(td_schema *s, const cJSON *object, const char *key)
{
  const cJSON *m = cJSON_IsObject(object) ? object->child : NULL;
  for (unsigned n = 0; m && n < WALKED; m = m->next, n++)
    if (strcmp(m->string, key) == 0)
      return m;
  if (!m)
    return NULL;
  td_member_index **bucket = &s->indices[td_hash_u64(s->seed, (uintptr_t)object) % SCHEMA_BUCKETS];
  const td_member_index *x = *bucket;
  while (x && x->object != object)
    x = x->next;
  if (!x)
    x = make_index(s, object, bucket);
  return x ? x->slots[slot_of(s, x, key)] : NULL;
}
