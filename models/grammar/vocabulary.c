/* A vocabulary as tries: see vocabulary.h. */
#include "models/grammar/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "models/grammar/internal.h"

typedef struct sort_key {
  const unsigned char *at;
  uint32_t n;
  int32_t id;
} sort_key;

static int compare_keys(const void *x, const void *y)
{
  const sort_key *a = x, *b = y;
  int c = memcmp(a->at, b->at, a->n < b->n ? a->n : b->n);
  if (c)
    return c;
  if (a->n != b->n)
    return a->n < b->n ? -1 : 1;
  return (a->id > b->id) - (a->id < b->id);
}

static bool keep_bytes(td_vocabulary *v, const td_token_bytes *tokens)
{
  size_t all = 0;
  for (uint32_t i = 0; i < v->n_tokens; i++)
    all += tokens[i].n_bytes;
  v->bytes = malloc(all + 1);
  v->offsets = calloc((size_t)v->n_tokens + 1, sizeof *v->offsets);
  v->same = calloc((size_t)v->n_tokens + 1, sizeof *v->same);
  if (!v->bytes || !v->offsets || !v->same || all > UINT32_MAX)
    return false;
  all = 0;
  for (uint32_t i = 0; i < v->n_tokens; i++) {
    v->offsets[i] = (uint32_t)all;
    v->same[i] = -1;
    if (tokens[i].n_bytes > 0)
      memcpy(v->bytes + all, tokens[i].bytes, tokens[i].n_bytes);
    all += tokens[i].n_bytes;
    if (tokens[i].n_bytes > v->max_depth)
      v->max_depth = tokens[i].n_bytes;
  }
  v->offsets[v->n_tokens] = (uint32_t)all;
  return v->max_depth <= UINT16_MAX;
}

/* keys are sorted, so each goes below the nodes of the bytes that it shares with the previous key. */
static void add_nodes(td_vocabulary *v, td_trie *t, const sort_key *keys, uint32_t n, uint32_t *path)
{
  uint32_t depth = 0;
  t->nodes[0] = (td_trie_node){.token = -1};
  t->n_nodes = 1;
  for (uint32_t i = 0; i < n; i++) {
    const sort_key *k = &keys[i], *before = i ? &keys[i - 1] : k;
    uint32_t shared = 0;
    while (i > 0 && shared < k->n && shared < before->n && k->at[shared] == before->at[shared])
      shared++;
    if (i > 0 && shared == k->n) { /* the same bytes */
      td_trie_node *node = &t->nodes[path[k->n]];
      v->same[k->id] = node->token;
      node->token = k->id;
      continue;
    }
    while (depth > shared)
      t->nodes[path[depth--]].end = t->n_nodes;
    while (depth < k->n) {
      uint8_t byte = k->at[depth++];
      path[depth] = t->n_nodes;
      t->nodes[t->n_nodes++] = (td_trie_node){.token = -1, .depth = (uint16_t)depth, .byte = byte};
    }
    t->nodes[path[depth]].token = k->id;
  }
  while (depth > 0)
    t->nodes[path[depth--]].end = t->n_nodes;
  t->nodes[0].end = t->n_nodes;
}

/* Adds the id to the masks of words with at least n_chars characters. Tokens with the same bytes are added
 * separately. */
static void add_word(td_vocabulary *v, td_letters letters, uint32_t n_chars, int32_t id)
{
  for (unsigned k = letters; k < TD_LETTERS_NONE; k++)
    for (uint32_t n = n_chars; n <= TD_WORD_CHARS; n++)
      td_vocabulary_slice(v, (td_letters)k, n)[id / 32] |= 1u << id % 32;
}

static bool make_trie(td_vocabulary *v, td_letters letters, const sort_key *sorted, uint32_t n_sorted,
                      sort_key *keys, uint32_t *path)
{
  td_trie *t = &v->tries[letters];
  size_t n_bytes = 0;
  uint32_t n = 0, n_chars;
  for (uint32_t i = 0; i < n_sorted; i++)
    if (td_word_letters((const char *)sorted[i].at, sorted[i].n, &n_chars) == letters) {
      keys[n++] = sorted[i];
      n_bytes += sorted[i].n;
      if (letters < TD_LETTERS_NONE)
        add_word(v, letters, n_chars, sorted[i].id);
    }
  t->nodes = malloc((n_bytes + 1) * sizeof *t->nodes);
  if (!t->nodes)
    return false;
  add_nodes(v, t, keys, n, path);
  t->tokens = malloc(((size_t)n + 1) * sizeof *t->tokens);
  if (!t->tokens)
    return false;
  for (uint32_t i = 0; i < t->n_nodes; i++) {
    t->nodes[i].first = t->n_tokens;
    for (int32_t id = t->nodes[i].token; id >= 0; id = v->same[id])
      t->tokens[t->n_tokens++] = id;
  }
  for (uint32_t i = 1; i < t->n_nodes; i = t->nodes[i].end)
    t->below_root[t->nodes[i].byte] = i;
  td_trie_node *fit = realloc(t->nodes, t->n_nodes * sizeof *fit);
  t->nodes = fit ? fit : t->nodes;
  return true;
}

static bool make_tries(td_vocabulary *v)
{
  uint32_t n = 0;
  sort_key *all = calloc((size_t)v->n_tokens + 1, sizeof *all),
           *some = calloc((size_t)v->n_tokens + 1, sizeof *some);
  uint32_t *path = calloc((size_t)v->max_depth + 1, sizeof *path);
  v->slices = calloc((size_t)TD_LETTERS_NONE * (TD_WORD_CHARS + 1) * (v->n_words + 1), sizeof *v->slices);
  bool ok = all && some && path && v->slices;
  for (uint32_t i = 0; ok && i < v->n_tokens; i++)
    if (v->offsets[i + 1] > v->offsets[i] && !td_vocabulary_ends(v, (int32_t)i))
      all[n++] = (sort_key){(const unsigned char *)v->bytes + v->offsets[i],
                            v->offsets[i + 1] - v->offsets[i], (int32_t)i};
  if (ok && n > 0)
    qsort(all, n, sizeof *all, compare_keys);
  for (unsigned k = 0; ok && k < TD_LETTERS_KINDS; k++)
    ok = make_trie(v, (td_letters)k, all, n, some, path);
  free(all);
  free(some);
  free(path);
  return ok;
}

td_status td_vocabulary_create(const td_token_bytes *tokens, uint32_t n_tokens, const int32_t *end_ids,
                               uint32_t n_end_ids, size_t max_bytes, td_vocabulary **out, td_error *err)
{
  td_vocabulary *v = calloc(1, sizeof *v);
  if (!v)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the vocabulary's trie");
  v->n_tokens = n_tokens;
  v->n_words = (n_tokens + 31) / 32;
  v->end_mask = calloc((size_t)v->n_words + 1, sizeof *v->end_mask);
  for (uint32_t i = 0; v->end_mask && i < n_end_ids; i++)
    if (end_ids[i] >= 0 && (uint32_t)end_ids[i] < n_tokens)
      v->end_mask[end_ids[i] / 32] |= 1u << end_ids[i] % 32;
  td_status st = TD_OK;
  v->memory = calloc(1, sizeof *v->memory);
  if (v->memory)
    v->memory->max_bytes = max_bytes;
  if (!v->memory || !v->end_mask || !keep_bytes(v, tokens) || !make_tries(v))
    st = td_fail(err, TD_ERR_NOMEM, "no memory for the vocabulary's trie");
  else
    st = td_vocabulary_learn(v, err);
  if (st != TD_OK) {
    td_vocabulary_destroy(v);
    return st;
  }
  *out = v;
  return TD_OK;
}

void td_vocabulary_destroy(td_vocabulary *v)
{
  if (!v)
    return;
  for (unsigned i = 0; i < TD_SHARED_STATES; i++) {
    free(v->shared_states[i].at);
    free(v->shared_states[i].mask);
    free(v->shared_states[i].inside);
    free(v->shared_states[i].exits);
  }
  for (unsigned k = 0; k < TD_LETTERS_KINDS; k++) {
    free(v->tries[k].nodes);
    free(v->tries[k].tokens);
  }
  free(v->slices);
  free(v->char_slices);
  free(v->long_tokens);
  free(v->same);
  free(v->bytes);
  free(v->offsets);
  free(v->end_mask);
  free(v->memory);
  free(v);
}

size_t td_vocabulary_grammar_bytes(const td_vocabulary *v) { return atomic_load(&v->memory->bytes); }
