/* Masks of what may be sampled next, made by threads of their own, so that one client's grammar holds up
 * nobody else's tokens.
 *
 * A slot has one mask at a time: the engine asks for it when the slot's tokens are known, and takes it for
 * the step that samples behind them. A mask that is not there by then is late: the row is not sampled, and
 * asks again in the next step. Accounts take turns; masks of one are made in the order in which they were
 * asked for.
 *
 * Thread: the engine thread calls; fills run on the masks' own threads, one at a time for each slot. */
#ifndef TD_ENGINE_MASKS_H
#define TD_ENGINE_MASKS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "engine/engine.h"

typedef struct td_masks td_masks;

/* wake_fd: an eventfd that is written when a mask is made. */
TD_MUST_CHECK td_status td_masks_create(uint32_t n_slots, uint32_t n_threads, int wake_fd, td_masks **out,
                                        td_error *err);
/* Waits for the fills that run. NULL: does nothing. */
void td_masks_destroy(td_masks *m);

/* The slot's mask behind tokens[0 .. n) goes to bits; all is borrowed until the slot is dropped or asks anew.
 * Its last mask is forgotten; no fill of it runs. */
void td_masks_ask(td_masks *m, uint32_t slot, uint32_t account, const td_mask_provider *provider,
                  const int32_t *tokens, uint32_t n, uint32_t *bits);
/* It was asked for and is made. */
bool td_masks_is_made(const td_masks *m, uint32_t slot);
/* It is made and the provider gave up: why. Else NULL. */
const char *td_masks_gave_up(const td_masks *m, uint32_t slot);
/* The slot wants no mask any more. False: a fill runs that still uses what was borrowed; ask again. */
TD_MUST_CHECK bool td_masks_drop(td_masks *m, uint32_t slot);
/* Until a mask is made that was not made when this was called last, so long at most. */
void td_masks_wait(td_masks *m, uint32_t max_us);

#endif
