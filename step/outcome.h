/* What a step gives back: for each logits entry, the ids that were chosen, their log-probabilities and what
 * went wrong; and the time that the device took.
 *
 * Entry i belongs to plan->logits[i]. ids[i * TD_STEP_IDS ..] has room for accepted drafts in addition to the
 * sampled token. n_ids[i] of them are valid. Today that is 1 if a token was sampled, and 0 if the entry is
 * only scored, late, or not a number. logprobs has the shape of ids. It holds the log-probability of each
 * chosen id; for a scored entry the first element is the target's.
 *
 * logprobs and top are NULL if no entry of the step asks for them. An entry asks if it is scored, or if its
 * slot's sampling has wants_logprobs. If they are NULL, they are neither computed nor copied. Elements that
 * an entry did not ask for are not filled. A log-probability belongs to the model's own distribution: it is
 * the log-softmax of the logits that the output head computed, before penalties, masks and temperature.
 *
 * Owner: the backend. Valid until the next submission. */
#ifndef TD_STEP_OUTCOME_H
#define TD_STEP_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

#include "config/limits.h"

enum {
  TD_LOGITS_NAN = 1,  /* the logits hold a NaN or no finite value: nothing was chosen */
  TD_LOGITS_LATE = 2, /* not sampled in this step, because the host asked so: its token is computed again */
};

/* What is reported of one token at its position. It is passed by value from here to the answer. A further
 * number needs a member here, code in op_logprob.c and logprob.cu to compute it, and code in
 * server/logprobs.c to write it. */
typedef struct td_token_logprob {
  float logprob; /* NaN: not available */
} td_token_logprob;

typedef struct td_top_token {
  int32_t id;
  float logprob;
} td_top_token;

typedef struct td_outcome {
  uint32_t n_logits;
  const int32_t *ids;               /* [n_logits][TD_STEP_IDS] */
  const uint8_t *n_ids;             /* [n_logits] */
  const uint8_t *flags;             /* [n_logits] TD_LOGITS_* */
  const td_token_logprob *logprobs; /* [n_logits][TD_STEP_IDS], or NULL */
  const td_top_token *top; /* [n_logits][top_stride] likeliest first, the slot's n_top of them; or NULL */
  uint32_t top_stride;     /* the most that any entry of the step asked for */

  bool captured; /* the forward was launched from a captured step */
  float busy_us; /* the device's time for the step, without its waits for the host; 0: not known */
  float idle_us; /* the device's waits: for this step after the one before, if that ended shortly before,
                  * and for late sampling */
} td_outcome;

#endif
