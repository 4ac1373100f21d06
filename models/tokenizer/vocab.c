/* The vocabulary: all texts in one blob, a record of eight bytes per id, and a hash table of ids.
 *
 * 128k tokens take about 1.5 MB of text, 1 MB of records and 2 MB of hash table; loading allocates three
 * times. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

td_status td_vocab_init(td_vocab *v, uint32_t n_ids, uint64_t n_text_bytes, td_error *err)
{
  memset(v, 0, sizeof *v);
  if (n_ids > td_limit_max(TD_LIMIT_MODEL_VOCAB))
    return td_fail(err, TD_ERR_MODEL, "tokenizer has ids up to %u, at most %llu tokens are served", n_ids - 1,
                   (unsigned long long)td_limit_max(TD_LIMIT_MODEL_VOCAB));
  n_text_bytes += n_ids; /* terminators */
  if (n_text_bytes > UINT32_MAX / 2)
    return td_fail(err, TD_ERR_MODEL, "tokenizer vocabulary has %llu bytes of text",
                   (unsigned long long)n_text_bytes);
  v->cap_tokens = n_ids;
  v->blob_cap = (uint32_t)n_text_bytes + 1;
  v->n_slots = 16;
  while (v->n_slots < 2 * (uint64_t)n_ids)
    v->n_slots *= 2;
  v->seed = td_random_u64();
  v->tokens = calloc((size_t)n_ids + 1, sizeof *v->tokens);
  v->blob = calloc(v->blob_cap, 1);
  v->slots = malloc(v->n_slots * sizeof *v->slots);
  if (!v->tokens || !v->blob || !v->slots) /* td_tokenizer_destroy frees the rest */
    return td_fail(err, TD_ERR_NOMEM, "no memory for a vocabulary of %u tokens", n_ids);
  memset(v->slots, 0xFF, v->n_slots * sizeof *v->slots);
  v->blob_bytes = 1; /* offset 0 is the empty text of ids that are holes */
  return TD_OK;
}

void td_vocab_deinit(td_vocab *v)
{
  free(v->tokens);
  free(v->blob);
  free(v->slots);
  memset(v, 0, sizeof *v);
}

static td_vocab_slot *slot_of(const td_vocab *v, const char *text, size_t n, uint32_t *tag)
{
  const uint64_t hash = td_hash_bytes(v->seed, text, n);
  uint32_t i = (uint32_t)hash & (v->n_slots - 1);
  *tag = (uint32_t)(hash >> 32);
  for (; v->slots[i].id >= 0; i = (i + 1) & (v->n_slots - 1)) {
    const td_token *t = &v->tokens[v->slots[i].id];
    if (v->slots[i].tag == *tag && t->n_bytes == n && memcmp(v->blob + t->offset, text, n) == 0)
      break;
  }
  return &v->slots[i];
}

int32_t td_vocab_find(const td_vocab *v, const char *text, size_t n_bytes)
{
  if (n_bytes == 0 || n_bytes > v->longest_text_bytes)
    return -1;
  uint32_t tag;
  return slot_of(v, text, n_bytes, &tag)->id;
}

/* Added tokens may be added after the vocabulary was sized. */
static td_status make_room(td_vocab *v, uint32_t id, size_t n_bytes, td_error *err)
{
  if (id >= v->cap_tokens) {
    uint32_t cap = id + 1 + id / 4;
    td_token *tokens = realloc(v->tokens, (size_t)cap * sizeof *tokens);
    if (!tokens)
      return td_fail(err, TD_ERR_NOMEM, "no memory for a vocabulary of %u tokens", cap);
    memset(tokens + v->cap_tokens, 0, (size_t)(cap - v->cap_tokens) * sizeof *tokens);
    v->tokens = tokens;
    v->cap_tokens = cap;
  }
  if (v->blob_cap - v->blob_bytes <= n_bytes) {
    uint64_t cap = (uint64_t)v->blob_cap + v->blob_cap / 2 + n_bytes + 1;
    char *blob = cap > UINT32_MAX ? NULL : realloc(v->blob, cap);
    if (!blob)
      return td_fail(err, TD_ERR_NOMEM, "no memory for %llu bytes of vocabulary", (unsigned long long)cap);
    v->blob = blob;
    v->blob_cap = (uint32_t)cap;
  }
  if ((uint64_t)v->n_used * 2 < v->n_slots)
    return TD_OK;
  uint32_t old_n = v->n_slots, tag;
  td_vocab_slot *old = v->slots, *slots = malloc((size_t)old_n * 2 * sizeof *slots);
  if (!slots)
    return td_fail(err, TD_ERR_NOMEM, "no memory for a vocabulary index");
  memset(slots, 0xFF, (size_t)old_n * 2 * sizeof *slots);
  v->slots = slots;
  v->n_slots = old_n * 2;
  for (uint32_t i = 0; i < old_n; i++)
    if (old[i].id >= 0)
      *slot_of(v, td_vocab_text(v, (uint32_t)old[i].id), v->tokens[old[i].id].n_bytes, &tag) = old[i];
  free(old);
  return TD_OK;
}

td_status td_vocab_add(td_vocab *v, uint32_t id, const char *text, size_t n_bytes, uint8_t flags,
                       td_error *err)
{
  if (n_bytes > td_limit_max(TD_LIMIT_TOKEN_BYTES) || n_bytes > TD_TOKEN_TEXT_MAX)
    return td_fail(err, TD_ERR_MODEL, "token %u has %zu bytes of text, at most %llu are served", id, n_bytes,
                   (unsigned long long)td_limit_max(TD_LIMIT_TOKEN_BYTES));
  if (id >= td_limit_max(TD_LIMIT_MODEL_VOCAB))
    return td_fail(err, TD_ERR_MODEL, "token \"%.*s\" has id %u, ids below %llu are served", (int)n_bytes,
                   text, id, (unsigned long long)td_limit_max(TD_LIMIT_MODEL_VOCAB));
  TD_TRY(make_room(v, id, n_bytes, err));
  td_token *t = &v->tokens[id];
  if (t->flags & TD_TOKEN_PRESENT)
    return td_fail(err, TD_ERR_MODEL, "tokens \"%.100s\" and \"%.*s\" have the same id %u",
                   td_vocab_text(v, id), n_bytes < 100 ? (int)n_bytes : 100, text, id);
  if (n_bytes > 0) {
    uint32_t tag;
    td_vocab_slot *slot = slot_of(v, text, n_bytes, &tag);
    if (slot->id >= 0)
      return td_fail(err, TD_ERR_MODEL, "token \"%.*s\" has two ids, %d and %u",
                     n_bytes < 100 ? (int)n_bytes : 100, text, slot->id, id);
    *slot = (td_vocab_slot){(int32_t)id, tag};
    v->n_used++;
  }
  memcpy(v->blob + v->blob_bytes, text, n_bytes);
  v->blob[v->blob_bytes + n_bytes] = '\0';
  *t = (td_token){v->blob_bytes, (uint16_t)n_bytes, flags | TD_TOKEN_PRESENT, TD_WHOLE_UNKNOWN};
  v->blob_bytes += (uint32_t)n_bytes + 1;
  if (id >= v->n_tokens)
    v->n_tokens = id + 1;
  if (n_bytes > v->longest_text_bytes)
    v->longest_text_bytes = (uint32_t)n_bytes;
  return TD_OK;
}
