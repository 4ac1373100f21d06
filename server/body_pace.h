/* Whether a request body arrives fast enough: at least a given rate over each moving window. Bytes before the
 * window do not count, so a client cannot send a burst and then pause. Pure: the caller passes the time. */
#ifndef TD_SERVER_BODY_PACE_H
#define TD_SERVER_BODY_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { TD_BODY_PACE_SLOTS = 8 };

typedef struct td_body_pace {
  uint64_t
      slots[TD_BODY_PACE_SLOTS]; /* a ring: total bytes received by the end of each of the last eight slots */
  uint64_t slot_end_ms;          /* of the current slot; a slot is an eighth of the window */
  unsigned n, next;
} td_body_pace;

/* Begins a window; n_bytes have been received before it. */
void td_body_pace_begin(td_body_pace *p, uint64_t n_bytes, uint64_t now_ms, uint64_t window_ms);
/* Call this at least once a window. n_bytes: total bytes received so far. */
bool td_body_pace_is_slow(td_body_pace *p, uint64_t n_bytes, uint64_t now_ms, uint64_t window_ms,
                          uint64_t bytes_per_s);

#endif
