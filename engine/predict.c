/* Predictions against measured times, and Retry-After.
 *
 * The scheduler predicts step times and queue delays from the cost model and its own corrections. Here they
 * are compared with the clock. */
#include "engine/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

const double td_step_error_borders[TD_STEP_ERROR_BORDERS] = {0.01, 0.02, 0.03, 0.05, 0.075, 0.1,
                                                             0.15, 0.2,  0.3,  0.5,  1,     2};

/* No client is told to wait longer than this: it would give up before. */
enum { RETRY_AFTER_MAX_US = 120 * 1000000 };
/* A forecast looks at all running requests, and a step may be shorter than that. */
enum { FORECAST_EVERY_US = 5000 };

/* ---- engine thread ---- */

void td_engine_record_step_error(td_engine *e, double predicted_us, double measured_us)
{
  td_engine_stats *st = &e->stats;
  uint32_t i = 0;
  st->last_step_predicted_us = predicted_us;
  if (!(predicted_us > 0) || !(measured_us > 0))
    return;
  double error = fabs(predicted_us - measured_us) / measured_us;
  while (i < TD_STEP_ERROR_BORDERS && error > td_step_error_borders[i])
    i++;
  st->step_errors[i]++;
  st->step_error_sum += error;
  st->predicted_us_sum += predicted_us;
  e->step_errors[e->n_step_errors++ % TD_STEP_ERRORS_KEPT] = (float)error;
}

bool td_engine_make_forecast(td_engine *e, bool idle, td_sched_forecast *f)
{
  uint64_t now_us = atomic_load_explicit(&e->heartbeat_us, memory_order_relaxed);
  if (!idle && !e->was_idle_at_forecast && now_us < e->forecast_us + FORECAST_EVERY_US)
    return false;
  *f = td_sched_make_forecast(e->sched);
  e->forecast_us = now_us;
  e->was_idle_at_forecast = idle;
  return true;
}

void td_engine_record_forecast(td_engine *e, const td_sched_forecast *f)
{
  e->stats.queue_delay_us = f->start_us;
  e->stats.next_end_us = f->next_end_us;
  e->stats.end_interval_us = f->end_interval_us;
  e->stats.prompt_token_us = f->prompt_token_us;
}

/* ---- loop thread ---- */

/* Each refused client is given the next turn after the last refused client's. But no client is told to wait
 * longer than all current requests take to end: a client that asks again and again gets many turns but uses
 * one, and turns in a queue that has drained since are void. */
uint64_t td_engine_retry_after_us(td_engine *e, uint32_t n_prompt)
{
  td_engine_stats st;
  uint64_t now_us = td_clock_us(), cap = (uint64_t)td_option(&e->options, TD_LIMIT_QUEUE_TOKENS);
  td_engine_get_stats(e, &st);
  if (st.queue_delay_us <= 0)
    return 0;
  double wait_us = st.next_end_us, gap_us = st.end_interval_us; /* there is room when a request ends */
  uint32_t n_seen = st.n_running + st.n_waiting, n_rows = e->backend->max_rows;
  if (n_seen < n_rows &&
      n_seen < e->n_used_slots) /* the engine has not seen all of a burst: more places will be in use */
    gap_us *= (double)n_seen / (e->n_used_slots < n_rows ? e->n_used_slots : n_rows);
  if (e->n_queued_tokens + n_prompt > cap) { /* room for tokens: at the rate of the whole queue */
    double token_us = fmax(st.queue_delay_us / (double)(e->n_queued_tokens + 1), st.prompt_token_us);
    wait_us = fmax(wait_us, token_us * (double)(e->n_queued_tokens + n_prompt - cap));
    gap_us = fmax(gap_us, token_us * n_prompt);
  }
  double all_us = wait_us + gap_us * e->n_used_slots;
  double from_now_us = e->retry_at_us > now_us ? (double)(e->retry_at_us - now_us) + gap_us : 0;
  from_now_us = fmin(fmax(from_now_us, wait_us), fmin(all_us, RETRY_AFTER_MAX_US));
  e->retry_at_us = now_us + (uint64_t)from_now_us;
  return (uint64_t)from_now_us;
}

/* ---- any thread ---- */

static int compare_float(const void *a, const void *b)
{
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

void td_engine_step_errors(const td_engine *ce, double *median, double *p99)
{
  td_engine *e = (td_engine *)ce; /* only the lock is modified */
  float errors[TD_STEP_ERRORS_KEPT];
  pthread_mutex_lock(&e->stats_lock);
  uint32_t n = e->n_step_errors < TD_STEP_ERRORS_KEPT ? (uint32_t)e->n_step_errors : TD_STEP_ERRORS_KEPT;
  memcpy(errors, e->step_errors, sizeof errors);
  pthread_mutex_unlock(&e->stats_lock);
  qsort(errors, n, sizeof *errors, compare_float);
  *median = n > 0 ? (double)errors[n / 2] : 0;
  *p99 = n > 0 ? (double)errors[(n - 1) * 99 / 100] : 0;
}
