/* What a step gives back: for each of the plan's logits, in the plan's order, what was chosen, how likely
 * that was, and what went wrong; and how long the device took.
 *
 * Entry i is of plan->logits[i]. ids[i * TD_STEP_IDS ..] has room for drafts that are accepted beside the
 * sampled token; n_ids[i] of them are chosen, 1 today where a token is sampled, 0 where the entry is only
 * scored, late, or not a number. logprobs is as long as ids: of each chosen id, or in the first place the
 * target's.
 *
 * logprobs and top are NULL where no entry of the step asks for them: a scored entry, or one whose slot's
 * sampling wants_logprobs. Then nothing of them is computed or copied. What an entry did not ask for is not
 * filled. A log-probability is of the model's own distribution: log-softmax of the logits as the head gave
 * them, before penalties, masks and temperature.
 *
 * Owner: the backend; valid until the next submission. */
#ifndef TD_STEP_OUTCOME_H
#define TD_STEP_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

#include "config/limits.h"

enum {
  TD_LOGITS_NAN = 1,  /* the logits hold a NaN or no finite value: nothing was chosen */
  TD_LOGITS_LATE = 2, /* not sampled in this step, as the host asked: its token is computed again */
};

/* What is told of one token at its place. It goes by value from here to the answer: a further number is a
 * member here, what op_logprob.c and logprob.cu make of it, and how server/logprobs.c writes it. */
typedef struct td_token_logprob {
  float logprob; /* NaN: it has none */
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
  const td_top_token *top; /* [n_logits][top_stride] likeliest first, as many as the slot's n_top; or NULL */
  uint32_t top_stride;     /* the most that any entry of the step asked for */

  bool captured; /* the forward was launched from a captured step */
  float busy_us; /* the device's time for the step, what it waited for the host left out; 0: not known */
  float idle_us; /* what it waited: for this step behind the one before, if that ended shortly before, and for
                    late sampling */
} td_outcome;

#endif
