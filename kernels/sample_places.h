/* Who has sampler state: places for the slots that need more than their parameters.
 *
 * Sampling that is not plain needs a word for each token of the vocabulary (sample_state.h). There are far
 * more slots than rows in a step, so a backend keeps as many states as a step has rows: places, which a slot
 * takes when its request is about to sample, and keeps until a new tenant of the slot comes or somebody else
 * needs the place, who then takes the one that was longest not asked for. A state is a function of the
 * request and its tokens alone, so what was lost (a sequence was preempted and others ran) is made again.
 *
 * Why nobody loses a place in the step for which it was taken: a step has no more rows than there are places,
 * and each row asks before the step, so the one longest not asked for is never one that has just asked.
 *
 * Thread: the engine thread. */
#ifndef TD_KERNELS_SAMPLE_PLACES_H
#define TD_KERNELS_SAMPLE_PLACES_H

#include "common/status.h"
#include "kernels/sample_state.h"

enum { TD_NO_PLACE = UINT32_MAX };

typedef struct td_sample_places {
  uint32_t n_slots, n_places;
  uint32_t *place_of; /* [n_slots] or TD_NO_PLACE */
  uint32_t *slot_of;  /* [n_places] or UINT32_MAX */
  uint64_t *asked;    /* [n_places] when it was asked for last */
  uint64_t n_asked;
} td_sample_places;

/* Memory of one place. */
static inline uint64_t td_sample_place_bytes(uint32_t vocab)
{
  return sizeof(td_sample_state) + (uint64_t)vocab * sizeof(uint16_t);
}

TD_MUST_CHECK td_status td_sample_places_init(td_sample_places *p, uint32_t n_slots, uint32_t n_places,
                                              td_error *err);
void td_sample_places_deinit(td_sample_places *p);
/* A new tenant: the slot has no place any more. */
void td_sample_places_leave(td_sample_places *p, uint32_t slot);
/* The slot's place. True: it is new, and what is in it is somebody else's. *loser: whose it was, or
 * UINT32_MAX. */
bool td_sample_places_take(td_sample_places *p, uint32_t slot, uint32_t *place, uint32_t *loser);

/* Makes the state of a request: words [vocab] are all written. */
void td_sample_state_make(const td_sampling *s, const td_sample_history *h, uint32_t vocab,
                          td_sample_state *state, uint16_t *words);

#endif
