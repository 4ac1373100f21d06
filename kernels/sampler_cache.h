/* A cache of sampler states, for the slots whose sampling is not plain.
 *
 * Such a slot needs a word for each token of the vocabulary (sample_state.h). There are far more slots than
 * rows in a step, so a backend keeps only as many states as a step has rows. A slot takes a state when its
 * request is about to sample. It keeps the state until a new request gets the slot, or until another slot
 * takes it: the least recently used state is evicted. A state depends only on the request and its tokens, so
 * a lost state (a sequence was preempted and others ran) is made again.
 *
 * A slot cannot lose its state in the step for which it took it: a step has no more rows than there are
 * states, and each row asks for its state before the step. So the least recently used state is none of this
 * step's.
 *
 * Thread: the engine thread. */
#ifndef TD_KERNELS_SAMPLER_CACHE_H
#define TD_KERNELS_SAMPLER_CACHE_H

#include "common/status.h"
#include "kernels/sample_state.h"

enum { TD_NO_STATE = UINT32_MAX };

typedef struct td_sampler_cache {
  uint32_t n_slots, n_states;
  uint32_t *state_of;  /* [n_slots] index of the slot's state, or TD_NO_STATE */
  uint32_t *slot_of;   /* [n_states] the slot that has the state, or UINT32_MAX */
  uint64_t *last_used; /* [n_states] n_uses when the state was last used */
  uint64_t n_uses;
} td_sampler_cache;

/* Bytes of one state. */
static inline uint64_t td_sampler_state_bytes(uint32_t vocab)
{
  return sizeof(td_sample_state) + (uint64_t)vocab * sizeof(uint16_t);
}

TD_MUST_CHECK td_status td_sampler_cache_init(td_sampler_cache *c, uint32_t n_slots, uint32_t n_states,
                                              td_error *err);
void td_sampler_cache_deinit(td_sampler_cache *c);
/* A new request gets the slot: the slot gives up its state. */
void td_sampler_cache_release(td_sampler_cache *c, uint32_t slot);
/* Sets *index to the slot's state. Returns true if the slot just took it: its contents are another slot's or
 * unset. *evicted_slot is the slot that lost the state, or UINT32_MAX. */
bool td_sampler_cache_acquire(td_sampler_cache *c, uint32_t slot, uint32_t *index, uint32_t *evicted_slot);

/* Makes the state of a request. Writes all of words [vocab]. */
void td_sample_state_make(const td_sampling *s, const td_sample_history *h, uint32_t vocab,
                          td_sample_state *state, uint16_t *words);

#endif
