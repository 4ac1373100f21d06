/* Rates: see rate.h. */
#include "server/rate.h"

#include <inttypes.h>
#include <stdio.h>

static const double us_per_minute = 60e6;

double td_rate_left(const td_rate *r, uint64_t per_minute, uint64_t now_us)
{
  double filled = now_us > r->at_us ? (double)(now_us - r->at_us) * (double)per_minute / us_per_minute : 0;
  double spent = r->spent > filled ? r->spent - filled : 0;
  return (double)per_minute - spent;
}

void td_rate_charge(td_rate *r, uint64_t per_minute, double n, uint64_t now_us)
{
  r->spent = (double)per_minute - td_rate_left(r, per_minute, now_us) + n;
  if (now_us > r->at_us)
    r->at_us = now_us;
}

void td_rate_give_back(td_rate *r, double n) { r->spent = r->spent > n ? r->spent - n : 0; }

void td_rate_follow(td_rate *r, uint64_t per_minute)
{
  if (r->spent > (double)per_minute)
    r->spent = (double)per_minute;
}

uint64_t td_rate_wait_us(const td_rate *r, uint64_t per_minute, double n, uint64_t now_us)
{
  double most = (double)per_minute, want = n < most ? n : most;
  double missing = want - td_rate_left(r, per_minute, now_us);
  return missing > 0 ? (uint64_t)(missing * us_per_minute / most) + 1 : 0;
}

const char *td_rate_time_text(uint64_t us, char text[TD_RATE_TEXT_BYTES])
{
  uint64_t ms = (us + 999) / 1000, s = (us + 999999) / 1000000;
  if (ms < 1000)
    snprintf(text, TD_RATE_TEXT_BYTES, "%" PRIu64 "ms", ms);
  else if (s < 60)
    snprintf(text, TD_RATE_TEXT_BYTES, "%" PRIu64 "s", s);
  else
    snprintf(text, TD_RATE_TEXT_BYTES, "%" PRIu64 "m%" PRIu64 "s", s / 60, s % 60);
  return text;
}
