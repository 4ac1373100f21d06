/* The server's life: start, signals, drain, deadlines, watchdog, end. See server.h. */
#include "server/server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/list.h"
#include "server/call.h"
#include "server/answer_memory.h"
#include "server/loop_memory.h"
#include "server/notify.h"
#include "server/origin.h"
#include "server/watch.h"

enum { SWEEP_MS = 100, END_FLUSH_MS = 1000 };
enum { FAILED_LEAST_MS = 200 }; /* for requests that were not yet read when the engine failed, to get a 503 */
/* Descriptors that are not connections: model files, epoll, sockets, logs. */
enum { SPARE_DESCRIPTORS = 64 };

enum { N_SIGNALS = sizeof((td_server *)0)->signals / sizeof(uv_signal_t) };
static const int SIGNALS[N_SIGNALS] = {SIGTERM, SIGINT, SIGHUP};

/* How long a step may take: health_stall_ms if it is set, otherwise a multiple of the longest prediction
 * ever made. */
static uint64_t step_stall_us(const td_server *s, const td_engine_stats *st)
{
  uint64_t set_us = 1000 * (uint64_t)td_option(s->options, TD_LIMIT_HEALTH_STALL_MS);
  uint64_t least_us = 1000 * (uint64_t)td_limit_max(TD_LIMIT_HEALTH_LEAST_MS);
  if (set_us > 0)
    return set_us;
  if (st->longest_predicted_us == 0) /* step times are not predicted */
    return 1000 * (uint64_t)td_limit_max(TD_LIMIT_HEALTH_STEP_UNKNOWN_MS);
  uint64_t us = st->longest_predicted_us * (uint64_t)td_limit_max(TD_LIMIT_HEALTH_STEP_TIMES);
  return us > least_us ? us : least_us;
}

static bool engine_is_late(const td_server *s)
{
  td_engine_stats st;
  td_engine_get_stats(s->engine, &st);
  uint64_t now = td_clock_us();
  bool busy = st.in_step || st.n_running > 0 || st.n_waiting > 0;
  return busy && now >= st.heartbeat_us && now - st.heartbeat_us >= step_stall_us(s, &st);
}

/* A large body may take long. A job is stuck only if it makes no progress. */
static bool workers_are_stuck(const td_server *s)
{
  uint64_t set_ms = (uint64_t)td_option(s->options, TD_LIMIT_HEALTH_STALL_MS);
  uint64_t stall_ms = set_ms > 0 ? set_ms : (uint64_t)td_limit_max(TD_LIMIT_HEALTH_LEAST_MS);
  return s->workers &&
         td_workers_are_stuck(s->workers, 1000 * stall_ms); /* s->workers is NULL until the start is done */
}

const char *td_server_unhealthy_reason(const td_server *s)
{
  if (s->engine_state == TD_ENGINE_FAILED || s->engine_state == TD_ENGINE_STOPPED)
    return "engine: it has stopped";
  if (s->engine_state != TD_ENGINE_LOADING && engine_is_late(s))
    return "engine: a step does not end";
  if (s->listener && !td_listener_healthy(s->listener)) /* NULL after a drain closed it */
    return "listener: clients are not accepted";
  return workers_are_stuck(s) ? "workers: a job is stuck" : NULL;
}

bool td_server_accepts_requests(td_engine_state state, td_api_error *e)
{
  switch (state) {
  case TD_ENGINE_READY: return true;
  case TD_ENGINE_LOADING:
    td_api_error_set(e, 503, "model_loading", NULL, "the model is still loading");
    break;
  default: td_api_error_set(e, 503, "engine_failed", NULL, "the engine has stopped");
  }
  return false;
}

bool td_server_has_model(const td_server *s, const char *name)
{
  return strcmp(name, td_engine_get_info(s->engine)->model_name) == 0 ||
         td_list_has(s->options->served_model_name, name);
}

void td_server_set_retry_after(td_server *s, td_api_error *e, uint32_t n_prompt)
{
  uint64_t us = e->status == 429 ? td_engine_retry_after_us(s->engine, n_prompt) : 0;
  if (us > 0)
    e->retry_after_s = (int)((us + 999999) / 1000000);
}

static int exit_code_of(td_status st)
{
  switch (st) {
  case TD_OK: return TD_EXIT_OK;
  case TD_ERR_CONFIG: return TD_EXIT_USAGE;
  case TD_ERR_NOMEM:
  case TD_ERR_CAPACITY: return TD_EXIT_NOMEM;
  case TD_ERR_DEVICE: return TD_EXIT_DEVICE;
  case TD_ERR_NO_DEVICE: return TD_EXIT_NO_DEVICE;
  default: return TD_EXIT_MODEL;
  }
}

/* ---- the end ---- */

static void close_handle(uv_handle_t *h)
{
  if (!uv_is_closing(h))
    uv_close(h, NULL);
}

/* Stops accepting and ends the loop; end() does the rest. */
static void stop(td_server *s)
{
  if (s->stopping)
    return;
  s->stopping = true;
  td_notify("STOPPING=1\nSTATUS=stopping");
  td_listener_close(s->listener);
  s->listener = NULL;
  uv_stop(&s->loop);
}

static void fail_calls(td_server *s, const char *code, const char *text)
{
  td_api_error e;
  for (td_call *call = s->calls, *next; call; call = next) {
    next = call->next;
    if (!call->conn)
      continue;
    td_api_error_set(&e, 503, code, NULL, "%s", text);
    call->conn->keep_alive = false;
    td_call_fail(call, &e);
  }
}

static bool all_sent(const td_server *s)
{
  for (const td_conn *c = s->conns; c; c = c->next)
    if (c->out.len_bytes > 0 || c->uv.stream.write_queue_size > 0)
      return false;
  return true;
}

/* Whether this process must still answer a request that has not arrived in full. */
static bool awaits_request(const td_server *s)
{
  if (uv_now(&s->loop) < s->answers_until_ms)
    return true;
  if (!s->handing_over)
    return false;
  for (const td_conn *c = s->conns; c; c = c->next)
    if (c->state == TD_CONN_READING)
      return true;
  return false;
}

void td_server_stop_if_drained(td_server *s)
{
  if (s->draining && !s->stopping && s->n_calls == 0 && all_sent(s) && !awaits_request(s))
    stop(s);
}

/* ---- drain ---- */

static void begin_drain(td_server *s, uint64_t ms)
{
  s->draining = true;
  s->drain_end_ms = uv_now(&s->loop) + ms;
  td_notify("STOPPING=1\nSTATUS=draining");
  td_watch_end_all(s);                         /* watchers would never leave by themselves */
  if (td_listener_is_inherited(s->listener)) { /* the next process accepts new clients */
    td_listener_close(s->listener);
    s->listener = NULL;
    s->handing_over = s->engine_state == TD_ENGINE_READY;
  }
  uv_timer_start(&s->sweep, s->sweep.timer_cb, 0, SWEEP_MS);
}

static void on_signal(uv_signal_t *h, int signum)
{
  td_server *s = h->data;
  if (signum == SIGHUP) {
    td_server_reload(s);
    return;
  }
  if (s->draining) {
    td_warn("second signal: exiting now");
    _exit(s->exit_code);
  }
  uint64_t ms = (uint64_t)td_option(s->options, TD_LIMIT_DRAIN_TIMEOUT_MS);
  td_info("%s: finishing %u requests within %.1f s", signum == SIGINT ? "SIGINT" : "SIGTERM", s->n_calls,
          (double)ms / 1e3);
  begin_drain(s, ms);
}

static void drain_sweep(td_server *s)
{
  uint64_t now = uv_now(&s->loop);
  if (now >= s->drain_end_ms && s->n_calls > 0 && !s->drain_timed_out) {
    td_warn("drain timeout: ending %u requests", s->n_calls);
    fail_calls(s, "shutting_down", "the server is shutting down");
    s->drain_timed_out = true;
    s->handing_over = false; /* later requests are refused, and do not delay the end */
    s->drain_end_ms = now + END_FLUSH_MS;
  }
  if (now >= s->drain_end_ms)
    stop(s);
  td_server_stop_if_drained(s);
}

static void on_sweep(uv_timer_t *t)
{
  td_server *s = t->data;
  uint64_t now = uv_now(&s->loop);
  for (td_conn *c = s->conns, *next; c; c = next) {
    next = c->next;
    td_conn_sweep(c, now);
  }
  for (td_conn *c = s->handing_over ? s->conns : NULL, *next; c; c = next) {
    next = c->next;
    td_conn_hand_over(c, now);
  }
  if (s->draining)
    drain_sweep(s);
}

/* ---- engine ---- */

static void engine_failed(td_server *s)
{
  td_error err = {0};
  td_engine_failure(s->engine, &err);
  td_error_log("%s", err.message);
  s->exit_code = exit_code_of(err.code);
  fail_calls(s, "engine_failed", "the engine has failed");
  s->answers_until_ms = uv_now(&s->loop) + FAILED_LEAST_MS;
  if (s->draining)
    return;
  begin_drain(s, END_FLUSH_MS);
  s->handing_over = true; /* no process follows, but requests on their way get a 503 */
}

static int32_t find_token(const void *engine, const char *text, bool *special)
{
  return td_engine_find_token(engine, text, special);
}

/* Determines how the model writes calls and reasoning. */
static void find_dialect(td_server *s)
{
  td_dialect *d = &s->dialect;
  td_dialect_signs signs = {.calls = s->options->tool_format,
                            .reasoning = s->options->reasoning_format,
                            .find = find_token,
                            .arg = s->engine};
  signs.template = td_engine_template_text(s->engine, &signs.n_template);
  td_dialect_find(&signs, d);
  for (size_t i = 0; i < TD_MARKS; i++)
    if (d->marks[i].id >= 0)
      s->mark_ids[s->n_mark_ids++] = d->marks[i].id;
  td_info("tool calls: %s%s; reasoning: %s", td_dialect_calls_name(d->calls),
          d->is_guess ? " (the template shows tools, but not how calls are written)" : "",
          d->thinks ? d->marks[TD_MARK_THINK].text + (d->marks[TD_MARK_THINK].id >= 0) : "none");
}

static void on_engine_wake(uv_async_t *a)
{
  td_server *s = a->data;
  td_engine_state state = td_engine_get_state(s->engine);
  td_engine_state before = s->engine_state;
  s->engine_state = state;
  if (state != before && state == TD_ENGINE_READY) {
    find_dialect(s);
    if (s->listener && td_listener_is_inherited(s->listener))
      td_listener_accept(s->listener);
    td_notify("READY=1\nSTATUS=serving");
    if (s->reload_pending)
      td_server_reload(s);
  }
  if (state == TD_ENGINE_READY)
    td_generation_poll(s);
  if (state != before && state == TD_ENGINE_FAILED)
    engine_failed(s);
}

/* [engine thread] */
static void wake_loop(void *arg) { uv_async_send(&((td_server *)arg)->engine_wake); }

/* Also lets systemd restart a daemon whose engine hangs, not only one whose loop hangs. */
static void on_watchdog(uv_timer_t *t)
{
  if (!td_server_unhealthy_reason(t->data))
    td_notify("WATCHDOG=1");
}

static void on_flush(uv_prepare_t *p)
{
  td_server *s = p->data;
  td_conn_flush_all(s);
  td_answer_memory_trim(s);
  td_conn_flush_all(s); /* sends the errors that td_answer_memory_trim wrote */
  if (s->draining)
    td_server_stop_if_drained(s);
}

/* ---- start ---- */

/* The configured number of connections, or fewer if the process may not open enough descriptors. */
static uint32_t connections_allowed(const td_options *o)
{
  uint64_t want = (uint64_t)td_option(o, TD_LIMIT_CONNECTIONS);
  struct rlimit r;
  if (getrlimit(RLIMIT_NOFILE, &r) != 0)
    return (uint32_t)want;
  if (r.rlim_cur < want + SPARE_DESCRIPTORS) {
    r.rlim_cur = r.rlim_max == RLIM_INFINITY || r.rlim_max > want + SPARE_DESCRIPTORS
                     ? want + SPARE_DESCRIPTORS
                     : r.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &r);
    (void)getrlimit(RLIMIT_NOFILE, &r);
  }
  if (r.rlim_cur >= want + SPARE_DESCRIPTORS)
    return (uint32_t)want;
  uint32_t can =
      r.rlim_cur > 2 * SPARE_DESCRIPTORS ? (uint32_t)r.rlim_cur - SPARE_DESCRIPTORS : SPARE_DESCRIPTORS;
  td_warn("connections: %llu are configured, open files (ulimit -n) allow %u", (unsigned long long)want, can);
  return can;
}

static td_status start_handles(td_server *s, td_error *err)
{
  int rc = uv_async_init(&s->loop, &s->engine_wake, on_engine_wake);
  s->engine_wake.data = s;
  rc = rc ? rc : uv_prepare_init(&s->loop, &s->flush);
  s->flush.data = s;
  rc = rc ? rc : uv_prepare_start(&s->flush, on_flush);
  rc = rc ? rc : uv_timer_init(&s->loop, &s->sweep);
  s->sweep.data = s;
  rc = rc ? rc : uv_timer_start(&s->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
  rc = rc ? rc : uv_timer_init(&s->loop, &s->watch_timer);
  s->watch_timer.data = s;
  rc = rc ? rc : uv_timer_init(&s->loop, &s->watchdog);
  s->watchdog.data = s;
  for (int i = 0; i < N_SIGNALS && rc == 0; i++) {
    rc = uv_signal_init(&s->loop, &s->signals[i]);
    s->signals[i].data = s;
    rc = rc ? rc : uv_signal_start(&s->signals[i], on_signal, SIGNALS[i]);
  }
  uint64_t us = td_notify_watchdog_us();
  if (rc == 0 && us > 0)
    rc = uv_timer_start(&s->watchdog, on_watchdog, 0, us / 2000 > 0 ? us / 2000 : 1);
  return rc == 0 ? TD_OK : td_fail(err, TD_ERR_IO, "event loop: %s", uv_strerror(rc));
}

static td_status start(td_server *s, td_error *err)
{
  const td_options *o = s->options;
  TD_TRY(start_handles(s, err));
  TD_TRY(td_kv_events_check_options(o, err));
  TD_TRY(td_server_read_keys_and_proxies(o, &s->keys, &s->trusted_proxies, err));
  s->n_keys_at_start = s->keys.n;
  TD_TRY(td_tenants_init(&s->tenants, &s->keys, err));
  ssize_t n = -1;
  do /* blocks early after a boot, and a signal may interrupt it */
    n = getrandom(&s->namespace_secret, sizeof s->namespace_secret, 0);
  while (n < 0 && errno == EINTR);
  if (n != sizeof s->namespace_secret)
    return td_fail(err, TD_ERR_IO, "getrandom: %s", strerror(errno));
  TD_TRY(td_workers_create(&s->loop, (uint32_t)td_option(o, TD_LIMIT_WORKERS),
                           (uint32_t)td_option(o, TD_LIMIT_WORKER_QUEUE), &s->workers, err));
  TD_TRY(td_listener_open(s, o->listen, &s->listener, err));
  if (!td_listener_is_inherited(s->listener)) /* otherwise clients wait in the backlog during the load */
    td_listener_accept(s->listener);
  TD_TRY(td_engine_create(o, &s->engine, err));
  TD_TRY(td_engine_set_accounts(s->engine, s->keys.n, err));
  TD_TRY(td_kv_events_start(o, s->engine, s->keys.n == 1 ? s->keys.keys[0].account : 0, &s->kv_events, err));
  td_notify("STATUS=loading the model");
  return td_engine_start(s->engine, wake_loop, s, err);
}

static void close_any(uv_handle_t *h, void *arg) { close_handle(h); }

/* Works after any partial start: skips what does not exist. */
static void end(td_server *s)
{
  td_listener_close(s->listener);
  s->listener = NULL;
  fail_calls(s, "shutting_down", "the server is shutting down");
  td_conn_flush_all(s);
  for (td_conn *c = s->conns, *next; c; c = next) {
    next = c->next;
    td_conn_close(c);
  }
  if (s->workers)
    td_workers_stop(s->workers);
  if (s->engine)
    td_engine_stop(s->engine);
  td_kv_events_stop(s->kv_events);
  uv_walk(&s->loop, close_any, NULL);
  uv_run(&s->loop, UV_RUN_DEFAULT);
  td_workers_destroy(s->workers);
  if (s->engine)
    td_engine_destroy(s->engine);
  td_tenants_deinit(&s->tenants);
  td_keys_deinit(&s->keys);
  TD_BUG_ON(uv_loop_close(&s->loop) != 0);
}

static int exit_code_of_start(td_status st, const td_error *err)
{
  bool is_address = strcmp(err->param, "listen") == 0 || strncmp(err->param, "kv_events", 9) == 0;
  return is_address && st == TD_ERR_IO ? TD_EXIT_LISTEN : exit_code_of(st);
}

/* ---- signals while the loop does not run ----
 *
 * All three signals are blocked before the loop runs, because their default action would end the process.
 * A SIGHUP that arrives then is handled when the loop runs; one that arrives after the loop has ended is
 * ignored. An early SIGTERM or SIGINT is handled by the loop too; a late one exits immediately, with the
 * exit code that the end would have had. Threads inherit the mask, so that signals go to the loop's
 * thread. */

static volatile sig_atomic_t end_code;

static void exit_at_once(int signum)
{
  (void)signum;
  _exit(end_code);
}

static void mask_signals(int how)
{
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < N_SIGNALS; i++)
    sigaddset(&set, SIGNALS[i]);
  pthread_sigmask(how, &set, NULL);
}

/* Call with signals blocked: stopping libuv's handles restores the default actions for a moment. */
static void end_signals(td_server *s)
{
  for (int i = 0; i < N_SIGNALS; i++)
    uv_signal_stop(&s->signals[i]);
  struct sigaction a = {.sa_handler = exit_at_once};
  end_code = s->exit_code;
  sigaction(SIGTERM, &a, NULL);
  sigaction(SIGINT, &a, NULL);
  signal(SIGHUP, SIG_IGN);
  mask_signals(SIG_UNBLOCK);
}

int td_server_run(td_options *options, int argc, char **argv)
{
  mask_signals(SIG_BLOCK);
  td_error err = {0};
  td_loop_memory_begin();
  td_server *s = calloc(1, sizeof *s);
  if (!s || uv_loop_init(&s->loop) != 0) {
    free(s);
    td_error_log("no memory for the server");
    return TD_EXIT_NOMEM;
  }
  signal(SIGPIPE, SIG_IGN);
  s->options = options;
  s->argc = argc;
  s->argv = argv;
  s->engine_state = TD_ENGINE_LOADING;
  s->max_conns = connections_allowed(options);
  td_metrics_init(&s->metrics);
  td_status st = td_loop_memory_widen(&s->loop, (int)s->max_conns + SPARE_DESCRIPTORS, &err);
  if (st == TD_OK)
    st = start(s, &err);
  if (st == TD_OK) {
    mask_signals(SIG_UNBLOCK);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    mask_signals(SIG_BLOCK);
  } else {
    td_error_log("%s", err.message);
    s->exit_code = exit_code_of_start(st, &err);
  }
  s->stopping = s->draining = true;
  end_signals(s);
  end(s);
  int code = s->exit_code;
  free(s);
  td_info("stopped");
  return code;
}

/* ---- --check-config, --check ---- */

static td_status check_options(const td_options *o, td_error *err)
{
  td_keys keys = {0};
  td_ranges ranges;
  char host[256], port[8];
  bool is_unix;
  TD_TRY(td_listen_parse(o->listen, host, port, &is_unix, err));
  TD_TRY(td_server_read_keys_and_proxies(o, &keys, &ranges, err));
  td_keys_deinit(&keys);
  return td_kv_events_check_options(o, err);
}

static int say_verdict(td_status st, const td_error *err, const char *good)
{
  if (st != TD_OK)
    td_error_log("%s", err->message);
  else
    td_info("%s", good);
  return exit_code_of(st);
}

int td_server_check_options(const td_options *options)
{
  td_error err = {0};
  return say_verdict(check_options(options, &err), &err, "the options are good");
}

int td_server_check(const td_options *options)
{
  td_error err = {0};
  td_status st = check_options(options, &err);
  if (st == TD_OK)
    st = td_engine_check(options, &err);
  return say_verdict(st, &err, "the options and the model are good");
}

/* ---- --calibrate ---- */

int td_server_calibrate(const td_options *options)
{
  td_error err = {0};
  td_buf table;
  td_buf_init(&table, 0);
  td_status st = td_engine_calibrate(options, &table, &err);
  if (st == TD_OK && table.failed)
    st = td_fail(&err, TD_ERR_NOMEM, "no memory for the step times");
  if (st == TD_OK)
    fwrite(table.data, 1, table.len_bytes, stdout);
  else
    td_error_log("%s", err.message);
  td_buf_deinit(&table);
  return exit_code_of(st);
}
