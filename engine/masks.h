/* Masks of the ids that may be sampled next. Threads of their own make them, so that one client's grammar
 * does not delay other clients' tokens.
 *
 * A slot has one mask at a time. The engine asks for it when the slot's tokens are known, and uses it in the
 * step that samples after them. If the mask is not made by then, it is late: the row is not sampled, and
 * tries again in the next step. Accounts take turns; within an account, masks are made in the order of
 * td_masks_queue.
 *
 * Thread: only the engine thread calls these functions. Fills run on the mask threads, one at a time for each
 * slot. */
#ifndef TD_ENGINE_MASKS_H
#define TD_ENGINE_MASKS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "engine/engine.h"

typedef struct td_masks td_masks;

/* wake_fd: an eventfd to write to when a mask is made. */
TD_MUST_CHECK td_status td_masks_create(uint32_t n_slots, uint32_t n_threads, int wake_fd, td_masks **out,
                                        td_error *err);
/* Waits for fills that run. m may be NULL. */
void td_masks_destroy(td_masks *m);

/* Queues the making of the slot's mask after tokens[0 .. n); a thread writes it to bits. All arguments are
 * borrowed until td_masks_drop or the next td_masks_queue. Forgets the slot's last mask. No fill of the slot
 * may be queued or running. */
void td_masks_queue(td_masks *m, uint32_t slot, uint32_t account, const td_mask_provider *provider,
                    const int32_t *tokens, uint32_t n, uint32_t *bits);
/* Whether the mask that was asked for is made. */
bool td_masks_is_made(const td_masks *m, uint32_t slot);
/* Why the provider gave up; NULL if it did not, or if the mask is not made yet. */
const char *td_masks_error(const td_masks *m, uint32_t slot);
/* The slot needs no mask any more. Returns false if a fill is running that still uses the borrowed arguments;
 * call again later. */
TD_MUST_CHECK bool td_masks_drop(td_masks *m, uint32_t slot);
/* Waits until a mask is made that was not made when this last returned, at most max_us. */
void td_masks_wait(td_masks *m, uint32_t max_us);

#endif
