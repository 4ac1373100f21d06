/* How a request's next token is chosen. This is plain data that the server sets and the sampler reads.
 *
 * The order of operations and their meaning are vLLM's (docs.vllm.ai, vllm.v1.sample.sampler of 0.10 to 0.22;
 * the formulas are apply_penalties of vllm/model_executor/layers/utils.py):
 *   1. log-probabilities are the log-softmax of the model's logits, before anything below ("raw_logprobs");
 *   2. the mask of allowed tokens (kernels.h: td_sample_input): logits of all other tokens become -inf;
 *   3. min_tokens: logits of ids that end the answer become -inf while it is shorter;
 *   4. logit_bias is added;
 *   5. repetition_penalty: logits of tokens in prompt or answer are divided by it if positive,
 *      otherwise multiplied;
 *   6. frequency_penalty times the token's count in the answer is subtracted, then presence_penalty if the
 *      count is not 0;
 *   7. temperature, min-p, top-k and top-p over the tokens that are left, then a draw.
 * temperature 0 is greedy: 1 to 6 apply, then the highest logit is chosen, and the lowest id among equals.
 * The draw for the token at position p uses a counter-based generator keyed by (seed, p). So a request's
 * tokens depend neither on its batch-mates nor on how its prompt was chunked. */
#ifndef TD_STEP_SAMPLING_H
#define TD_STEP_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

#include "config/limits.h"

enum { TD_END_IDS_MAX = TD_STOP_IDS_MAX + TD_EOS_IDS_MAX }; /* a request's stop ids and a model's EOS ids */

typedef struct td_logit_bias {
  int32_t id;
  float bias; /* [-100, 100] */
} td_logit_bias;

typedef struct td_sampling {
  float temperature; /* [0, 2] */
  float top_p;       /* (0, 1]; 1 = off */
  float min_p;       /* [0, 1]; 0 = off */
  int32_t top_k;     /* > 0, or 0 = off */
  uint64_t seed;

  float presence_penalty, frequency_penalty; /* [-2, 2]; 0 = off */
  float repetition_penalty;                  /* > 0; 1 or 0 = off */
  uint32_t n_bias;
  const td_logit_bias *bias; /* [n_bias], each id once; borrowed */
  uint32_t min_tokens;       /* the least length of the answer */
  uint32_t n_end_ids;
  const int32_t *end_ids; /* [n_end_ids] forbidden until that length; borrowed */

  bool wants_logprobs; /* the log-probability of each token is reported (outcome.h) */
  uint8_t n_top;       /* how many of the likeliest tokens are reported too, up to TD_TOP_TOKENS_MAX */
} td_sampling;

/* The tokens of a request so far. */
typedef struct td_sample_history {
  const int32_t *tokens;       /* [n_tokens], the prompt first */
  uint32_t n_prompt, n_tokens; /* n_tokens: of prompt and answer */
} td_sample_history;

/* Returns true if 3 to 6 above change nothing. Such a request needs no state but its parameters. */
static inline bool td_sampling_is_plain(const td_sampling *s)
{
  bool repeats_freely = s->repetition_penalty == 1 || s->repetition_penalty == 0;
  return s->presence_penalty == 0 && s->frequency_penalty == 0 && repeats_freely && s->n_bias == 0 &&
         (s->min_tokens == 0 || s->n_end_ids == 0);
}

#endif
