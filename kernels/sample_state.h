/* How mask, min_tokens, bias and penalties change a special row's logits before the sampler reads them.
 *
 * A row is special if its request's sampling is not plain, or if the step has a mask for it. step/sampling.h
 * gives the order of the changes and its source. A special row's state is a td_sample_state and one 16-bit
 * word for each token of the vocabulary. The word says how often the token is in the answer, whether it is in
 * the prompt, and whether the state lists it. So a token to which nothing applies costs one load and one
 * comparison. A mask has one bit for each token. Nothing is written back: a logit is adjusted where it is
 * read. The model's logits stay, because log-probabilities are of them.
 *
 * As in sample_math.h, every value is a fixed sequence of IEEE operations with the same bits on every
 * backend. A finite logit stays finite unless it is forbidden, so no penalty can make a row bad. */
#ifndef TD_KERNELS_SAMPLE_STATE_H
#define TD_KERNELS_SAMPLE_STATE_H

#include "kernels/sample_math.h"
#include "step/sampling.h"

enum {
  TD_WORD_COUNT = 0x3fff,  /* the token's count in the answer; saturates */
  TD_WORD_PROMPT = 0x4000, /* the token is in the prompt */
  TD_WORD_LISTED = 0x8000,
  TD_SAMPLE_LISTED_MAX = TD_LOGIT_BIAS_MAX + TD_END_IDS_MAX,
};

typedef struct td_sample_listed {
  int32_t id;
  float bias;
  uint32_t forbidden_below; /* forbidden while the sequence has fewer tokens than this */
} td_sample_listed;

typedef struct td_sample_state {
  float presence, frequency, repetition; /* repetition: never 0 */
  uint32_t n_listed;
  td_sample_listed listed[TD_SAMPLE_LISTED_MAX]; /* sorted by id */
} td_sample_state;

#define TD_SAMPLE_HIGHEST 0x1.fffffep127f

TD_SAMPLE_FN uint32_t td_sample_mask_words(uint32_t vocab) { return (vocab + 31) / 32; }
TD_SAMPLE_FN bool td_sample_is_allowed(const uint32_t *mask, uint32_t id)
{
  return mask[id / 32] >> id % 32 & 1;
}

TD_SAMPLE_FN const td_sample_listed *td_sample_find(const td_sample_state *s, int32_t id)
{
  uint32_t low = 0, high = s->n_listed;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (s->listed[middle].id <= id)
      low = middle;
    else
      high = middle;
  }
  return &s->listed[low];
}

TD_SAMPLE_FN bool td_sample_is_finite(float x) { return x >= -TD_SAMPLE_HIGHEST && x <= TD_SAMPLE_HIGHEST; }

/* The logit x under a mask. NaN and infinities do not change. */
TD_SAMPLE_FN float td_sample_masked(bool allowed, float x)
{
  return allowed || !td_sample_is_finite(x) ? x : -INFINITY;
}

/* The adjusted logit x of token `id` with its word, in a sequence of n_tokens tokens. NaN and infinities do
 * not change. */
TD_SAMPLE_FN float td_sample_adjust(const td_sample_state *s, uint32_t word, bool allowed, int32_t id,
                                    float x, uint32_t n_tokens)
{
  x = td_sample_masked(allowed, x);
  if (!td_sample_is_finite(x))
    return x;
  if (word & TD_WORD_LISTED) {
    const td_sample_listed *l = td_sample_find(s, id);
    if (n_tokens < l->forbidden_below)
      return -INFINITY;
    x = TD_SAMPLE_ADD(x, l->bias);
  }
  if (word & (TD_WORD_COUNT | TD_WORD_PROMPT))
    x = x > 0 ? TD_SAMPLE_DIV(x, s->repetition) : TD_SAMPLE_MUL(x, s->repetition);
  if (word & TD_WORD_COUNT) {
    x = TD_SAMPLE_ADD(x, -TD_SAMPLE_MUL(s->frequency, (float)(word & TD_WORD_COUNT)));
    x = TD_SAMPLE_ADD(x, -s->presence);
  }
  x = x < TD_SAMPLE_HIGHEST ? x : TD_SAMPLE_HIGHEST;
  return x > -TD_SAMPLE_HIGHEST ? x : -TD_SAMPLE_HIGHEST;
}

/* The new word of a token that was chosen. */
TD_SAMPLE_FN uint16_t td_sample_count_once_more(uint16_t word)
{
  return (uint16_t)((word & TD_WORD_COUNT) < TD_WORD_COUNT ? word + 1 : word);
}

#endif
