/* Log-probabilities of one token and of the likeliest tokens in a row of logits. Definitions:
 * kernels/logprob_math.h. */
#include "kernels/logprob_math.h"

#include "kernels/cpu/cpu.h"

/* Finds the n_top highest ranks, in order, by insertion: most tokens need one comparison. */
static void find_top(const float *logits, uint32_t n, uint64_t *ranks, uint32_t n_top)
{
  uint32_t n_kept = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint64_t rank = td_logprob_rank(logits[i], i);
    if (n_kept == n_top && rank < ranks[n_kept - 1])
      continue;
    uint32_t at = n_kept < n_top ? n_kept++ : n_kept - 1;
    for (; at > 0 && ranks[at - 1] < rank; at--)
      ranks[at] = ranks[at - 1];
    ranks[at] = rank;
  }
}

void td_cpu_logprobs(const td_isa *isa, const float *logits, uint32_t n, int32_t id, uint32_t n_top,
                     td_token_logprob *out, td_top_token *top)
{
  uint64_t ranks[TD_TOP_TOKENS_MAX];
  float max;
  TD_BUG_ON(n_top > TD_TOP_TOKENS_MAX || (id >= 0 && (uint32_t)id >= n));
  n_top = n_top < n ? n_top : n;
  if (isa->argmax(logits, n, &max) < 0) { /* a bad row has no log-probabilities */
    *out = (td_token_logprob){.logprob = NAN};
    for (uint32_t i = 0; i < n_top; i++)
      top[i] = (td_top_token){(int32_t)i, NAN};
    return;
  }
  double log_sum = td_logprob_of_sum(isa->exp_sum(logits, n, max));
  *out = (td_token_logprob){.logprob = id >= 0 ? td_logprob(logits[id], max, log_sum) : NAN};
  if (n_top > 0)
    find_top(logits, n, ranks, n_top);
  for (uint32_t i = 0; i < n_top; i++)
    top[i] = (td_top_token){(int32_t)td_logprob_id_of_rank(ranks[i]),
                            td_logprob(td_logprob_logit_of_rank(ranks[i]), max, log_sum)};
}
