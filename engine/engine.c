/* Create, the thread, state, stop. The engine thread owns everything below this file. */
#include "engine/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "scheduler/order.h"

td_status td_engine_create(const td_options *options, td_engine **out, td_error *err)
{
  td_engine *e = aligned_alloc(_Alignof(td_engine), sizeof *e); /* the rings need cache-line alignment */
  if (!e)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the engine");
  memset(e, 0, sizeof *e);
  e->options = *options;
  e->wake_fd = -1;
  atomic_init(&e->state, TD_ENGINE_LOADING);
  pthread_mutex_init(&e->stats_lock, NULL);
  atomic_init(&e->heartbeat_us, td_clock_us());
  td_status st = td_engine_requests_init(e, err);
  if (st == TD_OK && options->kv_events[0])
    st = td_kv_feed_init(&e->kv_feed, (uint32_t)td_option(options, TD_LIMIT_PAGE_TOKENS), err);
  if (st == TD_OK) {
    e->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (e->wake_fd < 0)
      st = td_fail(err, TD_ERR_IO, "eventfd: %s", strerror(errno));
  }
  if (st != TD_OK) {
    td_engine_destroy(e);
    return st;
  }
  *out = e;
  return TD_OK;
}

td_status td_engine_check(const td_options *options, td_error *err)
{
  td_engine *e;
  TD_TRY(td_engine_create(options, &e, err));
  e->only_checks = true;
  td_status st = td_engine_load(e, err);
  td_engine_destroy(e);
  return st;
}

td_status td_engine_calibrate(const td_options *options, td_buf *table, td_error *err)
{
  td_engine *e;
  TD_TRY(td_engine_create(options, &e, err));
  e->calibrates = true;
  td_status st = td_engine_load(e, err);
  if (st == TD_OK)
    td_cost_print(&e->cost, e->cost_identity, table);
  td_engine_destroy(e);
  return st;
}

td_status td_engine_set_accounts(td_engine *e, uint32_t n, td_error *err)
{
  TD_BUG_ON(n >= TD_ACCOUNTS_MAX || (e->thread_started && td_engine_get_state(e) == TD_ENGINE_LOADING));
  if (!e->account_tokens)
    e->account_tokens = calloc(TD_ACCOUNTS_MAX, sizeof *e->account_tokens);
  if (!e->account_tokens)
    return td_fail(err, TD_ERR_NOMEM, "no memory for %u accounts", n);
  e->n_accounts = n;
  return TD_OK;
}

static void *engine_thread(void *arg)
{
  td_engine *e = arg;
  td_error err = {0};
  td_status st = td_engine_load(e, &err);
  if (st == TD_OK) {
    atomic_store(&e->state, TD_ENGINE_READY);
    e->wake(e->wake_arg);
    st = td_engine_run(e, &err);
  }
  if (st != TD_OK) {
    e->failure = err;
    e->failure.code = st;
    atomic_store(&e->state, TD_ENGINE_FAILED);
  } else {
    atomic_store(&e->state, TD_ENGINE_STOPPED);
  }
  e->wake(e->wake_arg);
  return NULL;
}

td_status td_engine_start(td_engine *e, void (*wake)(void *arg), void *arg, td_error *err)
{
  TD_BUG_ON(e->thread_started);
  e->wake = wake;
  e->wake_arg = arg;
  int rc = pthread_create(&e->thread, NULL, engine_thread, e);
  if (rc != 0)
    return td_fail(err, TD_ERR_NOMEM, "cannot start the engine thread: %s", strerror(rc));
  e->thread_started = true;
  return TD_OK;
}

td_engine_state td_engine_get_state(const td_engine *e) { return (td_engine_state)atomic_load(&e->state); }

void td_engine_failure(const td_engine *e, td_error *out)
{
  TD_BUG_ON(td_engine_get_state(e) != TD_ENGINE_FAILED);
  *out = e->failure;
}

void td_engine_stop(td_engine *e)
{
  if (!e->thread_started)
    return;
  atomic_store(&e->stop_requested, true);
  td_engine_wake_thread(e);
  pthread_join(e->thread, NULL);
  e->thread_started = false;
}

void td_engine_destroy(td_engine *e)
{
  if (!e)
    return;
  td_engine_stop(e);
  td_gpu_watch_stop(e->gpu_watch);
  td_masks_destroy(e->masks);
  td_plan_destroy(e->plan);
  td_plan_destroy(e->next);
  td_trace_destroy(e->trace);
  td_sched_destroy(e->sched);
  td_program_destroy(e->program);
  td_model_destroy(e->model);
  if (e->forward)
    e->backend->ops->discard(e->backend, e->forward);
  if (e->sampling)
    e->backend->ops->discard(e->backend, e->sampling);
  if (e->backend)
    e->backend->ops->destroy(e->backend);
  td_chat_template_destroy(e->chat_template);
  td_chat_template_destroy(e->tool_template);
  free(e->chat_template_text);
  td_buf_deinit(&e->template_text);
  td_tokenizer_destroy(e->tokenizer);
  td_model_files_close(e->files);
  td_engine_requests_deinit(e);
  td_engine_free_grammars(e); /* after the slots, whose mask providers use grammars */
  td_engine_free_step_memory(e);
  td_kv_feed_deinit(&e->kv_feed);
  if (e->wake_fd >= 0)
    close(e->wake_fd);
  pthread_mutex_destroy(&e->stats_lock);
  free(e);
}

const td_engine_info *td_engine_get_info(const td_engine *e) { return &e->info; }

void td_engine_get_stats(const td_engine *ce, td_engine_stats *out)
{
  td_engine *e = (td_engine *)ce; /* only the lock is modified */
  pthread_mutex_lock(&e->stats_lock);
  *out = e->stats;
  pthread_mutex_unlock(&e->stats_lock);
  out->heartbeat_us = atomic_load(&e->heartbeat_us);
  out->in_step = atomic_load(&e->in_step);
  out->longest_predicted_us = atomic_load(&e->longest_predicted_us);
}

bool td_engine_get_gpu(const td_engine *e, td_engine_gpu *out)
{
  return e->gpu_watch && td_gpu_watch_get(e->gpu_watch, out);
}

int td_engine_kv_events_fd(const td_engine *e) { return e->kv_feed.fd; }

uint32_t td_engine_read_kv_events(td_engine *e, const td_engine_kv_event **out, uint32_t max)
{
  bool must_wake_engine;
  uint32_t n = td_kv_feed_read(&e->kv_feed, out, max, &must_wake_engine);
  if (must_wake_engine)
    td_engine_wake_thread(e);
  return n;
}

uint32_t td_engine_read_steps(const td_engine *e, uint64_t *cursor, td_engine_step *out, uint32_t max,
                              uint64_t *n_missed)
{
  return td_step_log_read(&e->step_log, cursor, out, max, n_missed);
}
