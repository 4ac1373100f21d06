/* Makes merges from scores, because SentencePiece's BPE has no list of merges. It joins two neighbours if
 * together they are a piece, the piece with the highest score first, and the leftmost if scores are equal. So
 * every way to cut a piece into two pieces is a merge, whose rank is the position of its score among all
 * scores. */
#include "models/tokenizer/internal.h"

#include <math.h>
#include <stdlib.h>

/* Bounds the sum of the squares of the pieces' byte lengths, since each piece is looked up at each of its
 * characters. Published vocabularies stay below 2^24. */
static const uint64_t WORK_MAX = 1ull << 32;

typedef struct scored {
  float score;
  uint32_t id;
} scored;

static int by_score(const void *va, const void *vb)
{
  const scored *a = va, *b = vb;
  if (a->score != b->score)
    return a->score > b->score ? -1 : 1;
  return (a->id > b->id) - (a->id < b->id);
}

static int32_t model_piece(const td_vocab *v, const char *text, size_t n)
{
  int32_t id = td_vocab_find(v, text, n);
  return id >= 0 && (v->tokens[id].flags & TD_TOKEN_MODEL) ? id : -1;
}

/* Adds the merges that make piece id to m, or only counts them if m is NULL. */
static uint64_t merges_of(const td_vocab *v, uint32_t id, uint32_t rank, td_merges *m)
{
  const char *text = td_vocab_text(v, id);
  const size_t n = v->tokens[id].n_bytes;
  uint64_t found = 0;
  for (size_t i = 1; i < n; i++) {
    if (((unsigned char)text[i] & 0xC0) == 0x80)
      continue;
    int32_t left = model_piece(v, text, i), right = left < 0 ? -1 : model_piece(v, text + i, n - i);
    if (right < 0)
      continue;
    found++;
    if (m)
      td_merges_put(m, (td_merge_slot){(uint32_t)left, (uint32_t)right, rank, id});
  }
  return found;
}

td_status td_scores_to_merges(td_tokenizer *t, const float *scores, td_error *err)
{
  const td_vocab *v = &t->vocab;
  scored *order = malloc(((size_t)v->n_tokens + 1) * sizeof *order);
  if (!order)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the scores of %u tokens", v->n_tokens);
  uint32_t n = 0, rank = 0;
  uint64_t n_merges = 0, work = 0;
  for (uint32_t i = 0; i < v->n_tokens; i++)
    if (v->tokens[i].flags & TD_TOKEN_MODEL) {
      work += (uint64_t)v->tokens[i].n_bytes * v->tokens[i].n_bytes;
      if (work > WORK_MAX) {
        free(order);
        return td_fail(err, TD_ERR_MODEL, "the tokenizer's pieces are too long, up to piece %u", i);
      }
      order[n++] = (scored){isnan(scores[i]) ? -INFINITY : scores[i], i};
      n_merges += merges_of(v, i, 0, NULL);
    }
  qsort(order, n, sizeof *order, by_score);
  td_status st = td_merges_init(&t->merges, n_merges, err);
  for (uint32_t i = 0; i < n && st == TD_OK; i++) {
    rank += i > 0 && order[i].score != order[i - 1].score;
    (void)merges_of(v, order[i].id, rank, &t->merges);
  }
  free(order);
  return st;
}
