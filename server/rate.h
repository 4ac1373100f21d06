/* What a key may do a minute: a bucket that holds a minute's worth and fills evenly. What it has may be taken
 * at once, and be overdrawn by what is known only afterwards (tokens of answers). Pure. */
#ifndef TD_SERVER_RATE_H
#define TD_SERVER_RATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_rate {
  double spent;   /* of a minute's worth; above it, what is overdrawn */
  uint64_t at_us; /* when that was so */
} td_rate;

/* What may be taken now; negative while it is overdrawn. per_minute > 0 in all of these. */
double td_rate_left(const td_rate *r, uint64_t per_minute, uint64_t now_us);
/* Takes n, whether they are there or not. */
void td_rate_charge(td_rate *r, uint64_t per_minute, double n, uint64_t now_us);
/* n that were charged were not used. */
void td_rate_give_back(td_rate *r, double n);
/* The limit is another one: at most its whole is owed. */
void td_rate_follow(td_rate *r, uint64_t per_minute);
/* Until n may be taken, at most the whole; 0: now. */
uint64_t td_rate_wait_us(const td_rate *r, uint64_t per_minute, double n, uint64_t now_us);

enum { TD_RATE_TEXT_BYTES = 32 };
/* As OpenAI's headers write it: "20ms", "7s", "6m0s"; rounded up. */
const char *td_rate_time_text(uint64_t us, char text[TD_RATE_TEXT_BYTES]);

#endif
