/* Which decode steps are captured, and when (kernels.h: capture).
 *
 * No start waits for captures. A decode step that is not captured runs op by op, about a millisecond slower.
 * In idle moments (idle.c) the steps with the fewest rows are captured first, because a request that runs
 * alone gains most. A daemon without idle moments captures what it needs: after a decode step that ran op by
 * op, it captures the step of that row count, at most one every capture_pause_ms. No step is planned ahead of
 * that one, and running requests wait some milliseconds for the capture, once for each row count.
 *
 * A step whose row count is not captured runs on the next larger captured count. So captured counts are dense
 * where decode steps are short, and sparse where a few more rows cost nothing. A captured step does not serve
 * row counts at or below the next smaller count, even if that one is not captured: one request, padded to 256
 * rows, would take several times as long as op by op.
 *
 * capture_ms bounds all first captures together, in idle moments or not. Repeated captures, after tuning has
 * changed algorithms, do not count. */
#include "engine/internal.h"

#include "common/clock.h"
#include "common/log.h"

/* 1, 2, 4, 8, then multiples of 8; above 256, multiples of 32. */
static uint32_t next_smaller(uint32_t n_rows)
{
  if (n_rows > 256)
    return (n_rows - 1) / 32 * 32;
  return n_rows > 8 ? (n_rows - 1) / 8 * 8 : n_rows / 2;
}

void td_engine_begin_captures(td_engine *e)
{
  td_engine_captures *c = &e->captures;
  uint32_t most = e->backend->max_rows;
  *c = (td_engine_captures){.budget_us = (uint64_t)td_option(&e->options, TD_LIMIT_CAPTURE_MS) * 1000,
                            .last_us = td_clock_us()};
  if (!e->backend->ops->capture || c->budget_us == 0)
    return;
  for (uint32_t n = most; n > 0; n = next_smaller(n))
    c->n_counts++;
  TD_BUG_ON(c->n_counts > TD_CAPTURE_COUNTS_MAX);
  for (uint32_t n = most, i = c->n_counts; n > 0; n = next_smaller(n))
    c->counts[--i].n_rows = n;
  c->n_missing = c->n_counts;
}

/* Index of the count that a step of n_rows rows runs on. There must be one. */
static uint32_t count_for(const td_engine_captures *c, uint32_t n_rows)
{
  uint32_t i = 0;
  while (c->counts[i].n_rows < n_rows)
    i++;
  return i;
}

static td_captured_count *first_missing(td_engine_captures *c)
{
  uint32_t i = 0;
  while (c->counts[i].is_captured)
    i++;
  return &c->counts[i];
}

/* The largest stale count, because most row counts use it. */
static td_captured_count *last_stale(td_engine_captures *c)
{
  uint32_t i = c->n_counts - 1;
  while (!c->counts[i].is_stale)
    i--;
  return &c->counts[i];
}

/* ---- one capture ---- */

static void count_not_fused(td_engine_stats *s, const char *reason)
{
  uint32_t i = 0;
  while (i < s->n_not_fused && s->not_fused[i].reason != reason)
    i++;
  TD_BUG_ON(i == TD_NOT_FUSED_MAX);
  s->not_fused[i].reason = reason;
  s->not_fused[i].n_steps++;
  s->n_not_fused += i == s->n_not_fused;
}

/* Called for first captures only: forms that are captured again have been counted. */
static void count_forms(td_engine *e, const td_capture *forms)
{
  pthread_mutex_lock(&e->stats_lock);
  for (uint32_t i = 0; i < forms->n_forms; i++)
    if (forms->not_fused[i])
      count_not_fused(&e->stats, forms->not_fused[i]);
  pthread_mutex_unlock(&e->stats_lock);
  for (uint32_t i = 0; i < forms->n_forms; i++)
    e->captures.n_fused += !forms->not_fused[i];
  e->captures.n_forms += forms->n_forms;
  e->captures.n_fitted += forms->n_fitted;
}

static td_status capture(td_engine *e, td_captured_count *count, td_error *err)
{
  td_engine_captures *c = &e->captures;
  uint32_t least_rows = count > c->counts ? count[-1].n_rows + 1 : 1;
  td_capture forms;
  TD_TRY(e->backend->ops->capture(e->backend, e->forward, least_rows, count->n_rows, &forms, err));
  if (!count->is_captured) {
    count->is_captured = true;
    c->n_missing--;
    count_forms(e, &forms);
  }
  c->n_stale -= count->is_stale;
  count->is_stale = false;
  return TD_OK;
}

/* ---- first captures ---- */

static void log_end(td_engine *e, bool is_over)
{
  td_engine_captures *c = &e->captures;
  if (is_over)
    td_warn("capture_ms is over: %u of %u row counts are not captured", c->n_missing, c->n_counts);
  td_info("captured %u decode steps in %.2f s: %u fused, %u with a grid of attention for each launch",
          c->n_forms, (double)c->spent_us / 1e6, c->n_fused, c->n_fitted);
  for (uint32_t i = 0; i < e->stats.n_not_fused; i++)
    td_info("%u captured steps are not fused: %s", e->stats.not_fused[i].n_steps,
            e->stats.not_fused[i].reason);
}

static td_status capture_missing(td_engine *e, td_captured_count *count, td_error *err)
{
  td_engine_captures *c = &e->captures;
  uint64_t begin_us = td_clock_us();
  TD_TRY(capture(e, count, err));
  c->last_us = td_clock_us();
  c->spent_us += c->last_us - begin_us;
  bool is_over = c->n_missing > 0 && c->spent_us >= c->budget_us;
  if (c->n_missing == 0 || is_over)
    log_end(e, is_over);
  if (is_over)
    c->n_missing = 0;
  return TD_OK;
}

/* Returns an error only if the device failed. If a capture fails otherwise, later ones would fail too, so the
 * missing ones are given up and run op by op. */
static td_status try_missing(td_engine *e, td_captured_count *count, td_error *err)
{
  td_error why;
  td_status st = capture_missing(e, count, &why);
  if (st == TD_ERR_DEVICE) { /* ends the engine, as in a step */
    if (err)
      *err = why;
    return st;
  }
  if (st != TD_OK) {
    td_warn("%s: no more steps are captured in this run", why.message);
    e->captures.n_missing = 0;
  }
  return TD_OK;
}

td_status td_engine_capture_all(td_engine *e, td_error *err)
{
  while (e->captures.n_missing > 0)
    TD_TRY(capture_missing(e, first_missing(&e->captures), err));
  return TD_OK;
}

td_status td_engine_capture_next(td_engine *e, td_error *err)
{
  return try_missing(e, first_missing(&e->captures), err);
}

bool td_engine_awaits_capture(const td_engine *e, const td_plan *plan)
{
  const td_engine_captures *c = &e->captures;
  return c->n_missing > 0 && plan->n_logits == plan->n_rows && plan->n_tokens == plan->n_rows &&
         !c->counts[count_for(c, plan->n_rows)].is_captured;
}

bool td_engine_needs_capture(const td_engine *e, const td_plan *plan)
{
  return td_engine_awaits_capture(e, plan) &&
         td_clock_us() - e->captures.last_us >= td_limit_max(TD_LIMIT_CAPTURE_PAUSE_MS) * 1000;
}

td_status td_engine_capture_needed(td_engine *e, uint32_t n_rows, td_error *err)
{
  td_engine_captures *c = &e->captures;
  TD_TRY(try_missing(e, &c->counts[count_for(c, n_rows)], err));
  td_engine_publish_idle_work(e);
  return TD_OK;
}

/* ---- captures after algorithms changed ---- */

void td_engine_mark_stale(td_engine *e, uint32_t least_rows, uint32_t most_rows)
{
  td_engine_captures *c = &e->captures;
  for (uint32_t i = 0; i < c->n_counts; i++) {
    td_captured_count *count = &c->counts[i];
    if (count->is_captured && !count->is_stale && least_rows <= count->n_rows && count->n_rows <= most_rows) {
      count->is_stale = true;
      c->n_stale++;
    }
  }
}

td_status td_engine_recapture_stale(td_engine *e, td_error *err)
{
  td_engine_captures *c = &e->captures;
  td_captured_count *count = last_stale(c);
  td_status st = capture(e, count, err);
  c->n_recaptured += st == TD_OK;
  if (st != TD_OK) {
    for (uint32_t i = 0; i < c->n_counts; i++)
      c->counts[i].is_stale = false;
    c->n_stale = 0;
  }
  return st;
}
