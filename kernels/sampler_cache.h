/* A cache of sampler state, for the slots that need more than their parameters.
 *
 * Sampling that is not plain needs a word for each token of the vocabulary (sample_state.h). There are far
 * more slots than rows in a step, so a backend keeps as many states as a step has rows. A slot takes one when
 * its request is about to sample. It keeps it until a new tenant of the slot comes, or until another slot
 * needs a state: the one that was longest not asked for goes. A state is a function of the request and its
 * tokens alone, so what was lost (a sequence was preempted and others ran) is made again.
 *
 * Why nobody loses a state in the step for which it was taken: a step has no more rows than there are states,
 * and each row asks before the step, so the one longest not asked for is never one that has just asked.
 *
 * Thread: the engine thread. */
#ifndef TD_KERNELS_SAMPLER_CACHE_H
#define TD_KERNELS_SAMPLER_CACHE_H

#include "common/status.h"
#include "kernels/sample_state.h"

enum { TD_NO_STATE = UINT32_MAX };

typedef struct td_sampler_cache {
  uint32_t n_slots, n_states;
  uint32_t *state_of; /* [n_slots] or TD_NO_STATE */
  uint32_t *slot_of;  /* [n_states] or UINT32_MAX */
  uint64_t *asked;    /* [n_states] when it was asked for last */
  uint64_t n_asked;
} td_sampler_cache;

/* Memory of one state. */
static inline uint64_t td_sampler_state_bytes(uint32_t vocab)
{
  return sizeof(td_sample_state) + (uint64_t)vocab * sizeof(uint16_t);
}

TD_MUST_CHECK td_status td_sampler_cache_init(td_sampler_cache *c, uint32_t n_slots, uint32_t n_states,
                                              td_error *err);
void td_sampler_cache_deinit(td_sampler_cache *c);
/* A new tenant: the slot has no state any more. */
void td_sampler_cache_leave(td_sampler_cache *c, uint32_t slot);
/* The index of the slot's state. True: it is new, and what is in it is somebody else's. *loser: whose it was,
 * or UINT32_MAX. */
bool td_sampler_cache_take(td_sampler_cache *c, uint32_t slot, uint32_t *index, uint32_t *loser);

/* Makes the state of a request: words [vocab] are all written. */
void td_sample_state_make(const td_sampling *s, const td_sample_history *h, uint32_t vocab,
                          td_sample_state *state, uint16_t *words);

#endif
