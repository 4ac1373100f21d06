/* How a request's next token is chosen: plain data, set by the server, read by the sampling op.
 *
 * Order of operations (vLLM's): temperature, then min-p, then top-k, then top-p over what is left, then
 * a draw. temperature 0 is greedy: the highest logit, the lowest id among equals; nothing else applies.
 * The draw for the token at position p uses a counter-based generator keyed by (seed, p), so a request's
 * tokens depend neither on its batch-mates nor on how its prompt was chunked. */
#ifndef TD_STEP_SAMPLING_H
#define TD_STEP_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_sampling {
  float temperature; /* [0, 2] */
  float top_p;       /* (0, 1]; 1 = off */
  float min_p;       /* [0, 1]; 0 = off */
  int32_t top_k;     /* > 0, or 0 = off */
  uint64_t seed;
  bool wants_logprobs; /* the log-probability of each token is told (outcome.h) */
  uint8_t n_top;       /* and so many of the likeliest, up to TD_TOP_TOKENS_MAX */
} td_sampling;

#endif
