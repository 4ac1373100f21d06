/* Work in idle moments: first captures of decode steps (capture.c), then tuning (kernels.h: tune), and new
 * captures of steps whose algorithms tuning has changed.
 *
 * A start captures and measures nothing. When no request has run or waited for idle_ms, the engine does this
 * work piece by piece. A piece is a few launches or one step, and between two pieces the engine looks for
 * commands. So a request that arrives waits for one piece at most. Algorithms change only here, never in the
 * middle of an answer. A first capture may happen in the middle of one (capture.c).
 *
 * A captured step keeps the algorithms of its capture. When they have changed, the step is captured again
 * before more is measured, one capture for each piece, with nothing under way. Until then the old capture
 * serves. If measuring ends early, because its time is used up or it failed, this holds for the decisions
 * made so far. */
#include "engine/internal.h"

#include "common/clock.h"
#include "common/log.h"

static const char unmeasured[] = "those left are the library's first choice";

static bool is_tuning(const td_engine_idle *i) { return !i->tuning.is_done && i->spent_us < i->budget_us; }

static void log_known(const td_engine *e, const td_tuning *t)
{
  if (t->n_known == t->n_all)
    td_info("algorithms: all %u are known", t->n_all);
  else if (e->idle.budget_us > 0)
    td_info("algorithms: %u of %u are known; the others are measured in idle moments", t->n_known, t->n_all);
  else
    td_info("algorithms: %u of %u are known; %s (tune_ms)", t->n_known, t->n_all, unmeasured);
}

static void log_end(const td_engine *e)
{
  const td_engine_idle *i = &e->idle;
  const td_tuning *t = &i->tuning;
  td_info("algorithms: measured %u in %.2f s; %u are not the library's first choice; %u steps captured anew; "
          "%u of %u are known%s%s",
          t->n_measured, (double)i->spent_us / 1e6, t->n_not_first, e->captures.n_recaptured, t->n_known,
          t->n_all, t->n_known < t->n_all ? "; " : "", t->n_known < t->n_all ? unmeasured : "");
}

td_status td_engine_begin_tuning(td_engine *e, td_error *err)
{
  td_engine_idle *i = &e->idle;
  uint64_t begin_us = td_clock_us();
  if (!e->backend->ops->tune)
    return TD_OK;
  if (e->calibrates) {
    TD_TRY(td_backend_tune(e->backend, e->forward, e->options.cache_dir,
                           (uint32_t)td_limit_max(TD_LIMIT_TUNE_MS), &i->tuning, err));
    i->spent_us = td_clock_us() - begin_us;
    log_end(e);
    return TD_OK;
  }
  TD_TRY(e->backend->ops->tune_begin(e->backend, e->forward, e->options.cache_dir, &i->tuning, err));
  i->budget_us = (uint64_t)td_option(&e->options, TD_LIMIT_TUNE_MS) * 1000;
  if (i->tuning.n_all > 0)
    log_known(e, &i->tuning);
  return TD_OK;
}

uint32_t td_engine_idle_work_left(const td_engine *e)
{
  const td_engine_idle *i = &e->idle;
  uint32_t n = is_tuning(i) ? 1 + i->tuning.n_all - i->tuning.n_known : 0; /* 1: the end is not logged yet */
  return n + e->captures.n_missing + e->captures.n_stale;
}

void td_engine_publish_idle_work(td_engine *e)
{
  pthread_mutex_lock(&e->stats_lock);
  e->stats.tuning_left = td_engine_idle_work_left(e);
  pthread_mutex_unlock(&e->stats_lock);
}

static bool has_idle_work(const td_engine *e) { return td_engine_idle_work_left(e) > 0; }

int td_engine_idle_wait_ms(td_engine *e)
{
  td_engine_idle *i = &e->idle;
  td_sched_stats s;
  uint64_t now_us = td_clock_us(), quiet_us = td_limit_max(TD_LIMIT_IDLE_MS) * 1000;
  if (!has_idle_work(e))
    return -1;
  td_sched_get_stats(e->sched, &s);
  if (s.n_running + s.n_waiting > 0) {
    i->since_us = 0;
    return -1;
  }
  if (i->since_us == 0)
    i->since_us = now_us;
  uint64_t waited_us = now_us - i->since_us;
  return waited_us < quiet_us ? (int)((quiet_us - waited_us + 999) / 1000) : 0;
}

static td_status tune(td_engine *e, td_error *err)
{
  td_engine_idle *i = &e->idle;
  uint64_t begin_us = td_clock_us();
  td_status st = e->backend->ops->tune(e->backend, e->forward, &i->tuning, err);
  i->spent_us += td_clock_us() - begin_us;
  if (st == TD_ERR_DEVICE)
    return st;
  if (!i->tuning.is_done && (st != TD_OK || !is_tuning(i)))
    e->backend->ops->tune_end(e->backend, e->forward, &i->tuning);
  td_engine_mark_stale(e, i->tuning.changed_least, i->tuning.changed_most);
  return st;
}

/* One piece: a stale capture, or else a measurement. */
static td_status measure(td_engine *e, td_error *err)
{
  td_engine_idle *i = &e->idle;
  td_error why;
  td_status st = e->captures.n_stale > 0 ? td_engine_recapture_stale(e, &why) : tune(e, &why);
  if (st == TD_ERR_DEVICE) { /* ends the engine, as in a step */
    if (err)
      *err = why;
    return st;
  }
  if (st != TD_OK) {
    td_warn("%s: no more is measured in this run", why.message);
    i->tuning.is_done = true;
  }
  if (!has_idle_work(e)) /* this function is not called again */
    log_end(e);
  return TD_OK;
}

td_status td_engine_do_idle_work(td_engine *e, td_error *err)
{
  TD_TRY(e->captures.n_missing > 0 ? td_engine_capture_next(e, err) : measure(e, err));
  td_engine_publish_idle_work(e);
  return TD_OK;
}
