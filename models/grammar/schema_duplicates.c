/* Finds schemas with equal content, because generated schemas repeat a schema wherever it is used. Works from
 * the leaves up, so that containers are compared by the first equals of their members. */
#include <string.h>

#include "common/hash.h"
#include "common/progress.h"
#include "models/grammar/schema.h"

/* How a container is compared: VALUE exactly, SCHEMA without its annotations, NAMED as schemas by name, none
 * of which is an annotation. A schema that is mistaken for a value is merely not recognised as equal to
 * another. */
typedef enum comparison { SCHEMA, NAMED, VALUE } comparison;

typedef struct entry {
  const cJSON *at, *first;
  uint64_t hash;
  comparison compare;
} entry;

struct td_schema_duplicates {
  entry *of;         /* [n_slots] by the address of the container */
  entry *by_content; /* [n_slots] the first of each group of equals, by hash */
  uint32_t n_slots;
  uint64_t seed;
};

static bool is_container(const cJSON *at) { return cJSON_IsObject(at) || cJSON_IsArray(at); }

static uint32_t count_containers(const cJSON *at)
{
  uint32_t n = 1;
  for (const cJSON *m = at->child; m; m = m->next)
    if (is_container(m))
      n += count_containers(m);
  return n;
}

static entry *entry_of(const td_schema_duplicates *t, const cJSON *at)
{
  uint32_t k = (uint32_t)td_hash_u64(t->seed, (uintptr_t)at) & (t->n_slots - 1);
  while (t->of[k].at && t->of[k].at != at)
    k = (k + 1) & (t->n_slots - 1);
  return &t->of[k];
}

static comparison comparison_of(const cJSON *m, comparison parent)
{
  static const char *const name_maps[] = {"properties",       "patternProperties", "$defs",
                                          "definitions",      "dependentSchemas",  "dependencies",
                                          "dependentRequired"};
  if (parent == VALUE || (m->string && (strcmp(m->string, "enum") == 0 || strcmp(m->string, "const") == 0)))
    return VALUE;
  for (size_t i = 0; i < sizeof name_maps / sizeof *name_maps; i++)
    if (m->string && strcmp(m->string, name_maps[i]) == 0)
      return NAMED;
  return SCHEMA;
}

/* The first member, from m on, that is not an annotation. */
static const cJSON *skip_annotations(const cJSON *m, comparison parent)
{
  static const char *const annotations[] = {"description", "title", "$comment", "default", "examples"};
  for (; m && m->string && parent == SCHEMA; m = m->next) {
    size_t i = 0;
    while (i < sizeof annotations / sizeof *annotations && strcmp(m->string, annotations[i]) != 0)
      i++;
    if (i == sizeof annotations / sizeof *annotations)
      break;
  }
  return m;
}

static uint64_t hash_text(const td_schema_duplicates *t, uint64_t h, const char *text)
{
  return td_hash_u64(h, text ? td_hash_bytes(t->seed, text, strlen(text)) : 0);
}

static uint64_t hash_content(const td_schema_duplicates *t, const cJSON *at, comparison compare)
{
  uint64_t h = td_hash_u64(t->seed + compare, (uint64_t)(at->type & 0xFF));
  for (const cJSON *m = skip_annotations(at->child, compare); m; m = skip_annotations(m->next, compare)) {
    uint64_t number;
    memcpy(&number, &m->valuedouble, sizeof number);
    h = hash_text(t, h, m->string);
    h = td_hash_u64(h, (uint64_t)(m->type & 0xFF));
    if (is_container(m))
      h = td_hash_u64(h, (uintptr_t)entry_of(t, m)->first);
    else if (cJSON_IsNumber(m))
      h = td_hash_u64(h, number);
    else
      h = hash_text(t, h, m->valuestring);
  }
  return h;
}

static bool is_text(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

static bool has_equal_content(const td_schema_duplicates *t, const cJSON *a, const cJSON *b,
                              comparison compare)
{
  const cJSON *x = skip_annotations(a->child, compare), *y = skip_annotations(b->child, compare);
  for (; x && y; x = skip_annotations(x->next, compare), y = skip_annotations(y->next, compare)) {
    if ((x->type & 0xFF) != (y->type & 0xFF) || !is_text(x->string, y->string))
      return false;
    if (is_container(x) ? entry_of(t, x)->first != entry_of(t, y)->first
                        : !is_text(x->valuestring, y->valuestring) ||
                              memcmp(&x->valuedouble, &y->valuedouble, sizeof x->valuedouble) != 0)
      return false;
  }
  return !x && !y && (a->type & 0xFF) == (b->type & 0xFF);
}

static bool is_duplicate(const td_schema_duplicates *t, const entry *e, const cJSON *at, uint64_t hash,
                         comparison compare)
{
  return e->hash == hash && e->compare == compare && has_equal_content(t, e->at, at, compare);
}

static void add_container(const td_schema_duplicates *t, const cJSON *at, comparison compare)
{
  for (const cJSON *m = at->child; m; m = m->next)
    if (is_container(m))
      add_container(t, m, comparison_of(m, compare));
  uint64_t h = hash_content(t, at, compare);
  uint32_t k = (uint32_t)h & (t->n_slots - 1);
  td_progress_add(1);
  while (t->by_content[k].at && !is_duplicate(t, &t->by_content[k], at, h, compare))
    k = (k + 1) & (t->n_slots - 1);
  if (!t->by_content[k].at)
    t->by_content[k] = (entry){at, at, h, compare};
  *entry_of(t, at) = (entry){at, t->by_content[k].at, h, compare};
}

void td_schema_find_duplicates(td_schema *s)
{
  td_schema_duplicates *t = td_arena_alloc(&s->b->arena, sizeof *t);
  uint32_t n = is_container(s->root) ? count_containers(s->root) : 1, n_slots = 16;
  while (n_slots < 2 * n)
    n_slots *= 2;
  entry *of = td_arena_alloc_array(&s->b->arena, n_slots, sizeof *of);
  entry *by_content = td_arena_alloc_array(&s->b->arena, n_slots, sizeof *by_content);
  if (!t || !of || !by_content) {
    s->b->failed = true;
    return;
  }
  *t = (td_schema_duplicates){of, by_content, n_slots, s->seed};
  if (is_container(s->root))
    add_container(t, s->root, SCHEMA);
  s->same = t;
}

const cJSON *td_schema_first(const td_schema *s, const cJSON *schema)
{
  const entry *e = s->same ? entry_of(s->same, schema) : NULL;
  return e && e->at ? e->first : schema;
}
