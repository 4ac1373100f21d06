/* Whether a request body comes fast enough: over each moving window at least so many bytes a second. What
 * came before the window does not count, so a burst buys no silence. Pure: the time is the caller's. */
#ifndef TD_SERVER_BODY_PACE_H
#define TD_SERVER_BODY_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { TD_BODY_PACE_SLOTS = 8 };

typedef struct td_body_pace {
  uint64_t
      slots[TD_BODY_PACE_SLOTS]; /* a ring: bytes that had come at the ends of the last eighths of a window */
  uint64_t slot_end_ms;          /* of the eighth under way */
  unsigned n, next;
} td_body_pace;

/* A window begins, with n_bytes there already. */
void td_body_pace_begin(td_body_pace *p, uint64_t n_bytes, uint64_t now_ms, uint64_t window_ms);
/* To be asked at least once a window. n_bytes: all that have come so far. */
bool td_body_pace_is_slow(td_body_pace *p, uint64_t n_bytes, uint64_t now_ms, uint64_t window_ms,
                          uint64_t bytes_per_s);

#endif
