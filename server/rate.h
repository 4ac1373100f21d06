/* What a key may use per minute: a token bucket that holds one minute's worth and refills evenly. All of it
 * may be taken in one go. It may be overdrawn by amounts that are known only afterwards, like the tokens of
 * an answer. Pure functions. */
#ifndef TD_SERVER_RATE_H
#define TD_SERVER_RATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_rate {
  double spent;   /* what was taken and not yet refilled; above per_minute the bucket is overdrawn */
  uint64_t at_us; /* when `spent` was computed */
} td_rate;

/* What may be taken now; negative while the bucket is overdrawn. All functions need per_minute > 0. */
double td_rate_left(const td_rate *r, uint64_t per_minute, uint64_t now_us);
/* Takes n, even if the bucket holds less. */
void td_rate_charge(td_rate *r, uint64_t per_minute, double n, uint64_t now_us);
/* Returns n that were charged but not used. */
void td_rate_give_back(td_rate *r, double n);
/* Adapts to a changed limit: after that, at most one full minute's worth is owed. */
void td_rate_follow(td_rate *r, uint64_t per_minute);
/* Time until n may be taken, or the whole bucket if n is more than it holds; 0: now. */
uint64_t td_rate_wait_us(const td_rate *r, uint64_t per_minute, double n, uint64_t now_us);

enum { TD_RATE_TEXT_BYTES = 32 };
/* A duration as OpenAI's headers write it ("20ms", "7s", "6m0s"), rounded up. */
const char *td_rate_time_text(uint64_t us, char text[TD_RATE_TEXT_BYTES]);

#endif
