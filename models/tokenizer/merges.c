/* The merge table: which neighbours may be joined, with what priority, and into which token. */
#include "models/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

td_status td_merges_init(td_merges *m, uint64_t n_merges, td_error *err)
{
  memset(m, 0, sizeof *m);
  if (n_merges > td_limit_max(TD_LIMIT_MODEL_JSON_NODES))
    return td_fail(err, TD_ERR_MODEL, "tokenizer has %llu merges", (unsigned long long)n_merges);
  m->seed = td_random_u64();
  m->n_slots = 16;
  while (m->n_slots < 2 * n_merges)
    m->n_slots *= 2;
  m->slots = malloc(m->n_slots * sizeof *m->slots);
  m->maybe = calloc(m->n_slots, 1);
  if (!m->slots || !m->maybe) {
    td_merges_deinit(m);
    return td_fail(err, TD_ERR_NOMEM, "no memory for %llu merges", (unsigned long long)n_merges);
  }
  memset(m->slots, 0xFF, m->n_slots * sizeof *m->slots);
  return TD_OK;
}

void td_merges_deinit(td_merges *m)
{
  free(m->slots);
  free(m->maybe);
  memset(m, 0, sizeof *m);
}

void td_merges_put(td_merges *m, td_merge_slot merge)
{
  uint32_t hash = td_merges_hash(m, merge.left, merge.right), bit = hash & (8 * m->n_slots - 1),
           i = hash & (m->n_slots - 1);
  while (m->slots[i].left != UINT32_MAX &&
         (m->slots[i].left != merge.left || m->slots[i].right != merge.right))
    i = (i + 1) & (m->n_slots - 1);
  m->maybe[bit / 8] |= (uint8_t)(1u << bit % 8);
  m->slots[i] = merge;
  m->n_merges++;
}

static td_status absent(const td_merges *m, const char *what, size_t n, td_error *err)
{
  return td_fail(err, TD_ERR_MODEL, "tokenizer merge %u needs \"%.*s\", which is not in the vocabulary",
                 m->n_merges + 1, n < 200 ? (int)n : 200, what);
}

td_status td_merges_add(td_merges *m, const td_vocab *v, const char *left, size_t left_bytes,
                        const char *right, size_t right_bytes, td_error *err)
{
  int32_t l = td_vocab_find(v, left, left_bytes), r = td_vocab_find(v, right, right_bytes);
  if (l < 0)
    return absent(m, left, left_bytes, err);
  if (r < 0)
    return absent(m, right, right_bytes, err);
  char both[2 * TD_TOKEN_TEXT_MAX]; /* each half is a vocabulary text, so it fits */
  memcpy(both, left, left_bytes);
  memcpy(both + left_bytes, right, right_bytes);
  int32_t whole = td_vocab_find(v, both, left_bytes + right_bytes);
  if (whole < 0)
    return absent(m, both, left_bytes + right_bytes, err);
  td_merges_put(m, (td_merge_slot){(uint32_t)l, (uint32_t)r, m->n_merges, (uint32_t)whole});
  return TD_OK;
}

td_status td_merges_add_line(td_merges *m, const td_vocab *v, const char *line, size_t n, td_error *err)
{
  const char *space = n ? memchr(line, ' ', n) : NULL;
  if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - line)))
    return td_fail(err, TD_ERR_MODEL, "tokenizer merge %u, \"%.*s\", is not two texts with one space between",
                   m->n_merges + 1, n < 200 ? (int)n : 200, line);
  size_t left = (size_t)(space - line);
  return td_merges_add(m, v, line, left, space + 1, n - left - 1, err);
}
