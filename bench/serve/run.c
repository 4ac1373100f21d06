/* See run.h. Open arrivals are sent when they are due, whatever the server does. A closed stream sends its
 * next request when the one before has ended.
 *
 * All bytes of one read get the time of that read: no client can measure more finely. */
#include "bench/serve/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "loadgen/tool.h"

enum { TICK_MS = 50 };

typedef struct active {
  struct run *run;
  size_t record;
  td_exchange *ex; /* NULL: it has ended */
  td_sse sse;
  td_buf error_body;
  struct active *prev, *next;
} active;

typedef struct run {
  uv_loop_t *loop;
  td_http_client *http;
  const td_run_config *config;
  const td_cell *cell;
  td_run_result *out;
  td_buf body;
  double begin_s, stop_s, cut_s; /* stop: no request is sent later; cut: requests still open are aborted */
  size_t next;                   /* index of the next request to send */
  uint32_t n_open, n_to_resend;  /* n_to_resend: closed streams that wait for the next tick after a failure */
  uint32_t n_waiting_for_warm;   /* closed streams that wait for the last warm request to end */
  uint64_t n_tokens;
  size_t n_done, n_failed;
  active *all;
  uv_poll_t due;
  uv_timer_t tick;
  int timer_fd;
} run;

static double now_s(const run *r) { return td_tool_now_s() - r->begin_s; }

static void send_next(run *r);
static void send_waiting(run *r);

/* ---- one request ---- */

static void compose(run *r, const td_load_request *q)
{
  td_buf *b = &r->body;
  td_buf_clear(b);
  td_buf_append_str(b, "{\"model\":");
  td_buf_append_json_string(b, r->config->model, strlen(r->config->model));
  td_buf_append_str(b, ",\"prompt\":");
  td_load_prompt(&r->cell->load, q, &r->config->tokens, b);
  td_buf_printf(b, ",\"max_tokens\":%u,\"temperature\":%g,\"stream\":true", q->n_out, r->config->temperature);
  if (!r->config->no_usage)
    td_buf_append_str(b, ",\"stream_options\":{\"include_usage\":true}");
  if (r->config->ignore_eos)
    td_buf_append_str(b, ",\"ignore_eos\":true");
  if (r->config->return_token_ids)
    td_buf_append_str(b, ",\"return_token_ids\":true");
  if (r->config->extra)
    td_buf_printf(b, ",%s", r->config->extra);
  td_buf_append_char(b, '}');
  if (b->failed)
    td_tool_die("no memory for a prompt of %u tokens", q->n_in);
}

static td_record *record_of(const active *a) { return &a->run->out->records[a->record]; }

static td_request_result result_of_status(int code)
{
  if (code == 429)
    return TD_RESULT_HTTP_429;
  if (code == 503)
    return TD_RESULT_HTTP_503;
  return code >= 500 ? TD_RESULT_HTTP_5XX : code >= 400 ? TD_RESULT_HTTP_4XX : TD_RESULT_HTTP_OTHER;
}

static void on_data(void *arg, const char *json, size_t n)
{
  active *a = arg;
  td_record *rec = record_of(a);
  td_event e;
  if (rec->result != TD_RESULT_OPEN)
    return;
  td_event_read(json, n, &e);
  td_record_add_event(rec, &e, td_http_read_s(a->run->http) - a->run->begin_s);
  if (e.kind == TD_EVENT_TOKENS)
    a->run->n_tokens += e.n_tokens;
}

static void on_status(void *arg, int code)
{
  active *a = arg;
  record_of(a)->http_status = code;
  if (code != 200)
    record_of(a)->result = result_of_status(code);
}

static void on_bytes(void *arg, const char *bytes, size_t n)
{
  active *a = arg;
  td_record *rec = record_of(a);
  if (rec->http_status != 200)
    td_buf_append(&a->error_body, bytes, n);
  else if (!td_sse_feed(&a->sse, bytes, n, on_data, a) && rec->result == TD_RESULT_OPEN)
    rec->result = TD_RESULT_BROKEN_ANSWER;
}

/* Takes the message of an OpenAI-shaped error, or else the beginning of the body. */
static void take_error_body(active *a)
{
  td_record *rec = record_of(a);
  td_event e;
  td_event_read(a->error_body.data ? a->error_body.data : "", a->error_body.len_bytes, &e);
  if (e.kind == TD_EVENT_ERROR)
    snprintf(rec->detail, sizeof rec->detail, "%s", e.error);
  else
    snprintf(rec->detail, sizeof rec->detail, "%.100s", a->error_body.data ? a->error_body.data : "");
}

static void active_free(active *a)
{
  run *r = a->run;
  if (a->prev)
    a->prev->next = a->next;
  else
    r->all = a->next;
  if (a->next)
    a->next->prev = a->prev;
  td_sse_deinit(&a->sse);
  td_buf_deinit(&a->error_body);
  free(a);
  r->n_open--;
}

static void settle(active *a)
{
  run *r = a->run;
  td_record *rec = record_of(a);
  td_record_end(rec, now_s(r));
  bool ok = rec->result == TD_RESULT_DONE;
  r->n_done += ok;
  r->n_failed += !ok;
  active_free(a);
  if (r->cell->streams == 0)
    return;
  if (ok)
    send_next(r);
  send_waiting(r);
  if (!ok)
    r->n_to_resend++; /* wait for the tick: a server that refuses must not be flooded */
}

static void on_end(void *arg, td_http_end why, const char *detail)
{
  static const td_request_result results[] = {TD_RESULT_DONE, TD_RESULT_NO_CONNECTION,
                                              TD_RESULT_CONNECTION_CUT, TD_RESULT_BROKEN_ANSWER};
  active *a = arg;
  td_record *rec = record_of(a);
  a->ex = NULL;
  if (rec->http_status != 0 && rec->http_status != 200)
    take_error_body(a);
  else if (why != TD_HTTP_OK && rec->result == TD_RESULT_OPEN) {
    rec->result = results[why];
    snprintf(rec->detail, sizeof rec->detail, "%s", detail ? detail : "");
  }
  settle(a);
}

static void abort_active(active *a, td_request_result why)
{
  td_record *rec = record_of(a);
  td_http_abort(a->ex);
  if (rec->result == TD_RESULT_OPEN)
    rec->result = why;
  settle(a);
}

static const td_http_handlers handlers = {on_status, on_bytes, on_end};

static void send_request(run *r, const td_load_request *q)
{
  td_run_result *out = r->out;
  active *a = td_tool_alloc(1, sizeof *a);
  size_t i = out->n++;
  compose(r, q);
  double now = now_s(r); /* a closed stream's next request is due once its body is composed */
  out->records[i] = (td_record){.n_in = q->n_in,
                                .n_out = q->n_out,
                                .due_s = r->cell->streams > 0 ? now : q->due_s,
                                .sent_s = now,
                                .warm = i < r->cell->n_warm};
  if (r->cell->streams == 0)
    td_stats_add(&out->late_ms, (now - q->due_s) * 1e3);
  *a = (active){.run = r, .record = i, .next = r->all};
  if (r->all)
    r->all->prev = a;
  r->all = a;
  td_sse_init(&a->sse);
  td_buf_init(&a->error_body, 4096);
  r->n_open++;
  out->most_open = r->n_open > out->most_open ? r->n_open : out->most_open;
  td_exchange *ex = td_http_send(r->http, "/v1/completions", &r->body, &handlers, a);
  if (out->records[i].end_s == 0) /* otherwise it has failed already, and `a` is freed */
    a->ex = ex;
}

/* ---- when to send ---- */

static bool may_send(const run *r) { return r->next < r->cell->load.n && now_s(r) < r->stop_s; }

/* Whether the next request is the first that counts, while warm ones are still under way. */
static bool must_wait_for_warm(const run *r)
{
  return r->cell->n_warm > 0 && r->next == r->cell->n_warm && r->n_open > 0;
}

static void send_next(run *r)
{
  if (may_send(r) && must_wait_for_warm(r))
    r->n_waiting_for_warm++;
  else if (may_send(r))
    send_request(r, &r->cell->load.requests[r->next++]);
}

/* Sends the requests that wait for the warm ones, if they need not wait any more. send_next may fail
 * immediately and call this function again, so n_waiting_for_warm is cleared first. */
static void send_waiting(run *r)
{
  if (must_wait_for_warm(r))
    return;
  uint32_t n = r->n_waiting_for_warm;
  for (r->n_waiting_for_warm = 0; n > 0; n--)
    send_next(r);
}

static void arm(run *r)
{
  struct itimerspec t = {0};
  double at = r->begin_s + r->cell->load.requests[r->next].due_s;
  t.it_value.tv_sec = (time_t)at;
  t.it_value.tv_nsec = (long)((at - floor(at)) * 1e9);
  if (timerfd_settime(r->timer_fd, TFD_TIMER_ABSTIME, &t, NULL) < 0)
    td_tool_die("timerfd_settime: %m");
}

static void on_due(uv_poll_t *p, int status, int events)
{
  run *r = p->data;
  uint64_t count;
  if (read(r->timer_fd, &count, sizeof count) < 0)
    return;
  while (may_send(r) && r->cell->load.requests[r->next].due_s <= now_s(r))
    send_next(r);
  if (r->next < r->cell->load.n)
    arm(r);
}

static bool all_sent(const run *r) { return r->next >= r->cell->load.n || now_s(r) >= r->stop_s; }

static void show(const run *r)
{
  double now = now_s(r), share = (double)(r->n_done + r->n_failed) / (double)r->cell->load.n;
  if (isfinite(r->stop_s) && now / r->stop_s > share)
    share = now / r->stop_s;
  td_tool_progress(share, "%s: %.0f s, %zu sent, %u open, %zu done, %zu failed, %.0f tok/s", r->cell->name,
                   now, r->next, r->n_open, r->n_done, r->n_failed, now > 0 ? (double)r->n_tokens / now : 0);
}

static void on_tick(uv_timer_t *t)
{
  run *r = t->data;
  double now = now_s(r);
  active *next;
  for (active *a = r->all; a; a = next) {
    next = a->next;
    if (now >= r->cut_s)
      abort_active(a, TD_RESULT_UNFINISHED);
    else if (now - record_of(a)->sent_s > r->config->timeout_s)
      abort_active(a, TD_RESULT_TIMEOUT);
  }
  for (uint32_t n = r->n_to_resend; n > 0; n--) {
    r->n_to_resend--;
    send_next(r);
  }
  show(r);
  if (r->n_open == 0 && all_sent(r))
    uv_stop(r->loop);
}

/* ---- a run ---- */

static void plan_times(run *r)
{
  const td_cell *c = r->cell;
  double last_s = 0;
  for (size_t i = 0; i < c->load.n; i++)
    last_s = fmax(last_s, c->load.requests[i].due_s);
  r->stop_s = c->seconds > 0 ? c->seconds : INFINITY;
  r->cut_s = c->seconds > 0 ? c->seconds + c->drain_s : c->streams > 0 ? INFINITY : last_s + c->drain_s;
}

static void close_handles(run *r)
{
  uv_close((uv_handle_t *)&r->tick, NULL);
  if (r->timer_fd >= 0)
    uv_close((uv_handle_t *)&r->due, NULL);
  uv_run(r->loop, UV_RUN_NOWAIT);
  if (r->timer_fd >= 0)
    close(r->timer_fd);
}

static void begin(run *r)
{
  r->begin_s = td_tool_now_s();
  uv_timer_init(r->loop, &r->tick);
  r->tick.data = r;
  uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
  if (r->cell->streams > 0) {
    for (uint32_t i = 0; i < r->cell->streams; i++)
      send_next(r);
    return;
  }
  r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (r->timer_fd < 0 || uv_poll_init(r->loop, &r->due, r->timer_fd) < 0)
    td_tool_die("timerfd: %m");
  r->due.data = r;
  uv_poll_start(&r->due, UV_READABLE, on_due);
  arm(r);
}

void td_run_cell(uv_loop_t *loop, td_http_client *http, const td_run_config *config, const td_cell *cell,
                 td_run_result *out)
{
  run r = {.loop = loop, .http = http, .config = config, .cell = cell, .out = out, .timer_fd = -1};
  td_http_counts before = *td_http_get_counts(http);
  double cpu_s = td_tool_cpu_s();
  *out = (td_run_result){.records = td_tool_alloc(cell->load.n, sizeof *out->records)};
  td_buf_init(&r.body, 0);
  plan_times(&r);
  if (cell->load.n > 0) {
    begin(&r);
    uv_run(loop, UV_RUN_DEFAULT);
    out->wall_s = now_s(&r);
    out->cpu_s = td_tool_cpu_s() - cpu_s;
    close_handles(&r);
  }
  td_tool_progress(-1, " ");
  td_buf_deinit(&r.body);
  const td_http_counts *after = td_http_get_counts(http);
  out->http = (td_http_counts){after->n_opened - before.n_opened,   after->n_reused - before.n_reused,
                               after->n_retried - before.n_retried, after->bytes_in - before.bytes_in,
                               after->bytes_out - before.bytes_out, after->n_reads - before.n_reads};
}

void td_run_result_deinit(td_run_result *r)
{
  for (size_t i = 0; i < r->n; i++)
    free(r->records[i].token_events);
  free(r->records);
  td_stats_deinit(&r->late_ms);
  *r = (td_run_result){0};
}
