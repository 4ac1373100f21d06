/* The step loop: drain inbox -> plan -> submit -> sample -> wait -> commit -> publish.
 *
 * If the device can run ahead (pipeline_depth 2), and if the next step can only be "all rows decode once
 * more", the engine plans and submits it before it knows the outcome of this one. If a request turns out to
 * have ended, its row of the next step is dropped. If a row of the next step obeys a mask, the engine queues
 * that step's sampling only after this step's tokens are known and the mask was made from them: submit k,
 * sample k, submit k+1, wait k, masks, sample k+1.
 *
 * Planning ahead waits until shortly before this step ends. A request that comes before then starts with the
 * next step, and not one step later.
 *
 * Nothing here allocates, blocks on the loop thread, or looks at text. An idle engine blocks on the eventfd,
 * or does idle work piece by piece (idle.c). A busy engine occasionally does one capture between two steps
 * (capture.c). */
#include "engine/internal.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

/* wait_us: the predicted wait of a request that arrives now. */
static void handle_submit(td_engine *e, uint32_t slot, uint32_t generation, double wait_us)
{
  td_slot *s = &e->slots[slot];
  td_sched_request r = {.tokens = s->request.tokens,
                        .n_prompt = s->request.n_prompt,
                        .max_new = s->request.max_new,
                        .n_prompt_logits = s->request.n_prompt_logits,
                        .computes_all = s->vector != NULL,
                        .terms = s->request.terms};
  TD_BUG_ON(s->active);
  s->active = true;
  s->active_generation = generation;
  e->n_masked += s->mask != NULL;
  s->n_new = 0;
  atomic_store(&s->predicted_queue_us, (uint64_t)fmin(wait_us, 1e15));
  e->backend->ops->set_sampling(e->backend, slot, &s->request.sampling);
  if (td_sched_submit(e->sched, slot, &r, td_clock_us(), NULL) != TD_OK) {
    /* td_engine_submit has refused requests that can never fit, so this is our bug, not the client's error */
    s->error = "the scheduler refused the request";
    td_engine_end_slot(e, slot, TD_FINISH_ERROR);
  } else {
    td_engine_queue_mask(e, slot);
  }
}

/* A cancel may arrive after its request has ended, or even after the slot got a new request. */
static void handle_cancel(td_engine *e, uint32_t slot, uint32_t generation, bool complete)
{
  td_slot *s = &e->slots[slot];
  if (!s->active || s->active_generation != generation)
    return;
  if (complete)
    td_sched_end(e->sched, slot);
  else
    td_sched_cancel(e->sched, slot);
  td_engine_end_slot(e, slot, TD_SLOT_ENDED_CANCELLED);
}

/* A prediction of the wait takes longer the more requests run, and a burst of thousands must not hold up a
 * step. So within a burst, not every request gets its own prediction: after n requests, the next n /
 * SHARED_FORECAST_DIVISOR share one. */
enum { SHARED_FORECAST_DIVISOR = 16 };

static bool drain_inbox(td_engine *e)
{
  td_ring_item item;
  double wait_us = 0;
  uint32_t n_submitted = 0, next_forecast = 0;
  bool any = false;
  while (td_ring_pop(&e->inbox, &item)) {
    any = true;
    if (item.kind == TD_COMMAND_SUBMIT) {
      if (n_submitted++ == next_forecast) {
        wait_us = td_sched_forecast_start_us(e->sched);
        next_forecast = n_submitted + n_submitted / SHARED_FORECAST_DIVISOR;
      }
      handle_submit(e, item.slot, item.generation, wait_us);
    } else
      handle_cancel(e, item.slot, item.generation, item.kind == TD_COMMAND_END);
  }
  return any;
}

/* Ends requests whose deadline has passed or cannot be met. Returns true if there were any. */
static bool end_late_requests(td_engine *e, uint64_t now_us)
{
  td_sched_expired late[16];
  uint32_t n, n_all = 0;
  do {
    n = td_sched_expire(e->sched, now_us, late, 16);
    for (uint32_t i = 0; i < n; i++)
      td_engine_end_slot(e, late[i].slot, late[i].has_run ? TD_FINISH_CUT : TD_FINISH_UNSTARTED);
    n_all += n;
  } while (n == 16);
  return n_all > 0;
}

static void submit_step(td_engine *e, const td_plan *plan, double predicted_us)
{
  /* guessed times must not make a step count as stalled */
  bool is_known = e->cost_source > TD_TIMES_BUILT_IN;
  if (is_known &&
      (uint64_t)predicted_us > atomic_load_explicit(&e->longest_predicted_us, memory_order_relaxed))
    atomic_store(&e->longest_predicted_us, (uint64_t)predicted_us);
  td_engine_prepare_sampling(e, plan);
  td_backend_submit(e->backend, e->forward, plan);
}

/* Writes the step's record. Call before e->stats is updated, because the record holds differences from the
 * step before. */
static void log_step(td_engine *e, uint64_t step_us, double calibrated_us, const td_plan *plan,
                     const td_sched_stats *ss)
{
  td_engine_step s = {.step = plan->step,
                      .end_us = atomic_load_explicit(&e->heartbeat_us, memory_order_relaxed),
                      .step_us = (uint32_t)step_us,
                      .predicted_us = (uint32_t)fmin(e->times.predicted_us, UINT32_MAX),
                      .calibrated_us = (uint32_t)fmin(calibrated_us, UINT32_MAX),
                      .n_decodes = (uint16_t)plan->n_decode_rows,
                      .n_prefills = (uint16_t)(plan->n_rows - plan->n_decode_rows),
                      .n_prefill_tokens = plan->n_prefill_tokens,
                      .hit_tokens = (uint32_t)(ss->prefix_hit_tokens - e->stats.prefix_hit_tokens),
                      .n_running = ss->n_running,
                      .n_waiting = ss->n_waiting,
                      .pages_free = ss->pages_free,
                      .pages_cached = ss->pages_cached,
                      .pages_owned = ss->pages_owned,
                      .preemptions = (uint32_t)(ss->preemptions - e->stats.preemptions)};
  td_step_log_write(&e->step_log, &s);
}

static void update_stats(td_engine *e, uint64_t step_us, const td_plan *plan)
{
  td_sched_stats ss;
  td_sched_forecast f;
  td_sched_get_stats(e->sched, &ss);
  bool has_forecast = td_engine_make_forecast(e, ss.n_running + ss.n_waiting == 0, &f);
  if (plan) {
    td_step_work work = td_step_work_of(plan);
    double calibrated_us = td_cost_step_us(&e->cost, &work);
    log_step(e, step_us, calibrated_us, plan, &ss);
    uint64_t end_us = atomic_load_explicit(&e->heartbeat_us, memory_order_relaxed);
    /* a step that awaits its capture takes longer than such steps soon will */
    if (!td_engine_awaits_capture(e, plan)) {
      td_sched_observe(e->sched, plan, (double)step_us);
      td_engine_learn_step(e, &work, calibrated_us, (double)(end_us - e->times.since_us));
    }
  }
  pthread_mutex_lock(&e->stats_lock);
  td_engine_stats *st = &e->stats;
  st->n_waiting = ss.n_waiting;
  st->n_running = ss.n_running;
  st->pages_total = ss.pages_total;
  st->pages_free = ss.pages_free;
  st->pages_cached = ss.pages_cached;
  st->pages_owned = ss.pages_owned;
  st->prefix_query_tokens = ss.prefix_query_tokens;
  st->prefix_hit_tokens = ss.prefix_hit_tokens;
  st->preemptions = ss.preemptions;
  st->fair_preemptions = ss.fair_preemptions;
  st->evicted_pages = ss.evicted_pages;
  st->tbt_slo_us = ss.tbt_slo_us;
  st->times_source = e->cost_source;
  st->tuning_left = td_engine_idle_work_left(e);
  memcpy(st->cost_correction, ss.cost_correction, sizeof st->cost_correction);
  st->ahead_lead_us = e->backend->pipeline_depth < 2 ? 0 : e->ahead_lead_us;
  st->n_following = ss.n_following;
  st->follows = ss.follows;
  if (plan) {
    st->steps++;
    st->captured_steps += e->outcome.captured;
    st->late_rows = e->n_late_rows;
    st->decode_tokens += plan->n_decode_rows;
    st->prefill_tokens += plan->n_prefill_tokens;
    st->step_us_sum += step_us;
    st->plan_us_sum += e->times.plan_end_us - e->times.plan_begin_us;
    st->device_busy_us_sum += e->outcome.busy_us;
    st->device_idle_us_sum += e->outcome.idle_us;
    st->last_step_us = (uint32_t)step_us;
    st->last_step_decodes = plan->n_decode_rows;
    st->last_step_prefill_tokens = plan->n_prefill_tokens;
    td_engine_record_step_error(e, e->times.predicted_us, (double)step_us);
  }
  if (has_forecast)
    td_engine_record_forecast(e, &f);
  pthread_mutex_unlock(&e->stats_lock);
}

/* Makes a forecast when requests have arrived, because the step that is planned next may be long. With it,
 * Retry-After is known for requests that are refused meanwhile, even if the engine was idle before. */
static void forecast_arrivals(td_engine *e)
{
  td_sched_forecast f;
  td_sched_stats ss;
  if (!td_engine_make_forecast(e, false, &f))
    return;
  td_sched_get_stats(e->sched, &ss);
  pthread_mutex_lock(&e->stats_lock);
  e->stats.n_waiting = ss.n_waiting;
  e->stats.n_running = ss.n_running;
  td_engine_record_forecast(e, &f);
  pthread_mutex_unlock(&e->stats_lock);
}

/* Both threads exchange the flag, so either the loop sees that it must wake the engine, or the engine sees
 * the loop's command. Returns false if nothing arrived in max_us (negative: wait without limit). */
static bool wait_for_work(td_engine *e, int64_t max_us)
{
  struct pollfd wake = {.fd = e->wake_fd, .events = POLLIN};
  struct timespec limit = {max_us / 1000000, max_us % 1000000 * 1000};
  uint64_t n;
  int n_ready = 0;
  atomic_exchange(&e->is_asleep, true);
  bool any = !td_ring_is_empty(&e->inbox);
  while (!any && (n_ready = ppoll(&wake, 1, max_us < 0 ? NULL : &limit, NULL)) < 0 && errno == EINTR)
    ;
  while (n_ready > 0 && read(e->wake_fd, &n, sizeof n) < 0 && errno == EINTR)
    ;
  atomic_store(&e->is_asleep, false);
  return any || n_ready != 0;
}

/* Plans and submits the next step from the current state. Returns false if there is nothing to do. */
static bool plan_step(td_engine *e)
{
  bool commands = td_engine_publish_pending_ends(e);
  commands |= drain_inbox(e);
  uint64_t now_us = td_clock_us();
  atomic_store(&e->heartbeat_us, now_us);
  e->times.plan_begin_us = now_us;
  if (end_late_requests(e, now_us)) {
    commands = true;
    e->wake(e->wake_arg); /* the step that follows may be long */
  }
  if (commands)
    forecast_arrivals(e);
  if (!td_sched_plan(e->sched, now_us, e->plan)) {
    if (commands) { /* cancels may have ended slots */
      update_stats(e, 0, NULL);
      e->wake(e->wake_arg);
    }
    return false;
  }
  e->times.predicted_us = td_sched_predict_us(e->sched, e->plan);
  e->times.plan_end_us = td_clock_us();
  submit_step(e, e->plan, e->times.predicted_us);
  td_engine_sample(e, e->plan, e->late, &e->has_late);
  e->times.queued_us = td_clock_us();
  return true;
}

/* Whether nothing has come that the next step should know. */
static bool is_undisturbed(const td_engine *e)
{
  return td_ring_is_empty(&e->inbox) && !atomic_load(&e->stop_requested);
}

/* Behind a longer step the next one is planned at once, so that a wrong prediction stops the device for no
 * longer than this. */
enum { STEP_TO_WAIT_FOR_MAX_US = 100000 };

/* Waits until it is time to plan ahead of a step that began at begin_us. Returns false if something came
 * meanwhile. A mask that is ready wakes too, and does not count. */
static bool wait_to_plan_ahead(td_engine *e, uint64_t begin_us)
{
  double due_us = (double)begin_us + e->times.predicted_us - e->ahead_lead_us;
  if (e->times.predicted_us > STEP_TO_WAIT_FOR_MAX_US)
    return true;
  for (double left_us; (left_us = due_us - (double)td_clock_us()) >= 1 && is_undisturbed(e);)
    wait_for_work(e, (int64_t)left_us);
  return is_undisturbed(e);
}

/* The lead is how long before the predicted end of a step the next one is planned. If that was too late for
 * the device to go on without a break, or nearly so, it grows by half; else it shrinks slowly. So a few steps
 * in a thousand are late. The lead covers wrong predictions and a busy host alike. */
enum { LEAD_MIN_US = 600, SLACK_MIN_US = 150 };
static const double LEAD_GROWTH = 1.5, LEAD_SHRINKAGE = 1 - 1.0 / 512;

static void learn_lead(td_engine *e)
{
  bool was_late = e->next_times.queued_us + SLACK_MIN_US > e->times.ended_us;
  double lead_us = was_late ? e->ahead_lead_us * LEAD_GROWTH : e->ahead_lead_us * LEAD_SHRINKAGE;
  /* more than the whole step is no use: it is planned as soon as the step has begun */
  e->ahead_lead_us = fmax(LEAD_MIN_US, fmin(lead_us, fmax(e->ahead_lead_us, e->times.predicted_us)));
}

/* Plans and submits the step after e->plan while e->plan runs, if that step is certain. If a command waits,
 * it does not: commands can only be taken with nothing under way. begin_us: when e->plan began. */
static bool plan_step_ahead(td_engine *e, uint64_t begin_us)
{
  const uint8_t *late = e->has_late ? e->late : NULL;
  if (e->backend->pipeline_depth < 2 || !is_undisturbed(e) ||
      !td_sched_may_plan_ahead(e->sched, e->plan, late) || !wait_to_plan_ahead(e, begin_us))
    return false;
  e->next_times.plan_begin_us = td_clock_us();
  /* late requests are ended between steps */
  if (td_sched_next_expiry_us(e->sched) < e->next_times.plan_begin_us)
    return false;
  td_sched_plan_ahead(e->sched, e->plan, late, e->next);
  e->next_times.predicted_us = td_sched_predict_us(e->sched, e->next);
  e->next_times.plan_end_us = td_clock_us();
  submit_step(e, e->next, e->next_times.predicted_us);
  if (td_engine_awaits_masks(e, e->next))
    (void)td_backend_forward_ended(e->backend); /* so that the wait for masks does not count as device time */
  else
    td_engine_sample(e, e->next, e->next_late, &e->next_has_late);
  e->next_times.queued_us = td_clock_us();
  return true;
}

/* *last_end_us: when the step before ended; 0 after idleness. */
static td_status end_step(td_engine *e, uint64_t *last_end_us, td_error *err)
{
  TD_TRY(td_backend_wait(e->backend, &e->outcome, err));
  e->times.ended_us = td_clock_us();
  TD_TRY(td_engine_copy_vectors(e, err));
  td_engine_commit(e);
  uint64_t end_us = td_clock_us();
  uint64_t begin_us = *last_end_us > e->times.plan_begin_us ? *last_end_us : e->times.plan_begin_us;
  e->times.since_us = *last_end_us > 0 ? *last_end_us : begin_us;
  *last_end_us = end_us;
  atomic_store(&e->heartbeat_us, end_us);
  update_stats(e, end_us - begin_us, e->plan);
  if (e->plan->n_logits > 0)
    e->wake(e->wake_arg);
  if (e->trace)
    td_trace_step(e->trace, e->plan, &e->times, end_us, e->outcome.busy_us);
  return TD_OK;
}

static void advance_to_next(td_engine *e)
{
  td_plan *plan = e->plan;
  e->plan = e->next;
  e->next = plan;
  e->times = e->next_times;
  uint8_t *late = e->late;
  e->late = e->next_late;
  e->next_late = late;
  e->has_late = e->next_has_late;
  if (e->backend->awaits_sample)
    td_engine_sample(e, e->plan, e->late, &e->has_late);
}

static void publish_kv_events(td_engine *e)
{
  if (e->kv_feed.events)
    td_kv_feed_fill(&e->kv_feed, e->sched);
}

td_status td_engine_run(td_engine *e, td_error *err)
{
  bool under_way = false;
  uint64_t last_end_us = 0;
  e->ahead_lead_us = LEAD_MIN_US;
  TD_BUG_ON(e->cost_source == TD_TIMES_NONE); /* td_engine_load has set it */
  update_stats(e, 0, NULL);
  while (under_way || !atomic_load(&e->stop_requested)) {
    if (!under_way && !plan_step(e)) {
      publish_kv_events(e);
      int64_t idle_ms = td_engine_idle_wait_ms(e);
      if (!wait_for_work(e, idle_ms < 0 ? -1 : idle_ms * 1000))
        TD_TRY(td_engine_do_idle_work(e, err));
      last_end_us = 0;
      continue;
    }
    e->idle.since_us = 0;
    atomic_store(&e->in_step, true);
    uint32_t capture_rows = td_engine_needs_capture(e, e->plan) ? e->plan->n_rows : 0;
    uint64_t begin_us = last_end_us > e->times.queued_us ? last_end_us : e->times.queued_us;
    under_way =
        capture_rows == 0 && plan_step_ahead(e, begin_us); /* a capture needs that nothing is under way */
    TD_TRY(end_step(e, &last_end_us, err));
    publish_kv_events(e);
    if (under_way) {
      learn_lead(e);
      advance_to_next(e);
    }
    atomic_store(&e->in_step, under_way);
    if (capture_rows > 0) {
      TD_TRY(td_engine_capture_needed(e, capture_rows, err));
      last_end_us = 0; /* the capture's time belongs to no step */
    }
  }
  td_engine_save_learned(e);
  return TD_OK;
}
