/* A connection's life by the clock: each deadline takes effect at its exact millisecond and not before, and
 * what a sweep does in each state. Also what the engine reports about an answer, in metrics and the log. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "server_world_fixture.h"

static td_engine_info info;
static td_engine_stats stats;

const td_engine_info *__wrap_td_engine_get_info(const td_engine *e);
const td_engine_info *__wrap_td_engine_get_info(const td_engine *e) { return &info; }
void __wrap_td_engine_get_stats(const td_engine *e, td_engine_stats *out);
void __wrap_td_engine_get_stats(const td_engine *e, td_engine_stats *out) { *out = stats; }

static uint64_t clock_us;
uint64_t __real_td_clock_us(void);
uint64_t __wrap_td_clock_us(void);
uint64_t __wrap_td_clock_us(void) { return clock_us > 0 ? clock_us : __real_td_clock_us(); }

static uint64_t now_ms; /* the loop's */
uint64_t __wrap_uv_now(const uv_loop_t *l);
uint64_t __wrap_uv_now(const uv_loop_t *l) { return now_ms; }

static int most_at_once = INT_MAX; /* bytes that the kernel takes; 0: none now */

int __real_uv_try_write(uv_stream_t *s, const uv_buf_t bufs[], unsigned n);
int __wrap_uv_try_write(uv_stream_t *s, const uv_buf_t bufs[], unsigned n);
int __wrap_uv_try_write(uv_stream_t *s, const uv_buf_t bufs[], unsigned n)
{
  assert_int_equal(n, 1);
  uv_buf_t b = bufs[0];
  b.len = b.len < (size_t)most_at_once ? b.len : (size_t)most_at_once;
  return most_at_once == 0 ? UV_EAGAIN : __real_uv_try_write(s, &b, 1);
}

static void open_world(world *w)
{
  clock_us = 0;
  now_ms = 1000000;
  memset(&stats, 0, sizeof stats);
  make_world(w);
}

static void turn(world *w)
{
  for (int i = 0; i < 5; i++) {
    uv_run(&w->s->loop, UV_RUN_NOWAIT);
    td_conn_flush_all(w->s);
  }
}

static void say(world *w, const char *text)
{
  now_ms += 1000;
  assert_int_equal(send(w->client, text, strlen(text), 0), (ssize_t)strlen(text));
  turn(w);
}

/* Returns what the client has received; NULL: nothing. */
static const char *heard(world *w)
{
  static char text[100000];
  turn(w);
  ssize_t n = recv(w->client, text, sizeof text - 1, MSG_DONTWAIT);
  text[n > 0 ? n : 0] = '\0';
  return n > 0 ? text : NULL;
}

static uint64_t option(const world *w, td_limit_id id) { return (uint64_t)td_option(&w->options, id); }

static bool is_open(const world *w) { return w->s->conns != NULL; }

static uint64_t n_cut(const world *w)
{
  uint64_t n = 0;
  for (int i = 0; i < TD_CUT_KINDS; i++)
    n += w->s->metrics.connections_cut[i];
  return n;
}

/* ---- deadlines ---- */

/* A client that has sent nothing yet has the time limit of a head, and one that was answered has the idle
 * limit. Neither gets an error. */
static void test_idle(void **state)
{
  for (int answered = 0; answered < 2; answered++)
    for (int late = 0; late < 2; late++) {
      world w;
      open_world(&w);
      if (answered) {
        say(&w, "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_non_null(heard(&w));
      }
      uint64_t ms = option(&w, answered ? TD_LIMIT_HTTP_IDLE_TIMEOUT_MS : TD_LIMIT_HTTP_HEADER_TIMEOUT_MS);
      td_conn_sweep(w.c, now_ms + ms + (uint64_t)late);
      assert_int_equal(is_open(&w), !late);
      assert_int_equal(n_cut(&w), 0);
      assert_null(heard(&w));
      close_world(&w);
    }
}

static void test_head(void **state)
{
  for (int late = 0; late < 2; late++) {
    world w;
    open_world(&w);
    say(&w, "GET /version HTTP/1.1\r\nHos");
    uint64_t ms = option(&w, TD_LIMIT_HTTP_HEADER_TIMEOUT_MS);
    td_conn_sweep(w.c, now_ms + ms + (uint64_t)late);
    const char *text = heard(&w);
    assert_int_equal(text != NULL, late);
    assert_int_equal(w.s->metrics.connections_cut[TD_CUT_HEAD_TIMEOUT], late);
    assert_int_equal(n_cut(&w), late);
    if (late) {
      assert_true(strncmp(text, "HTTP/1.1 408 Request Timeout\r\n", 30) == 0 &&
                  strstr(text, "\r\nconnection: close\r\n"));
      assert_non_null(strstr(text, "\"the request head took too long\""));
      assert_int_equal(w.c->state, TD_CONN_LINGERING);
    }
    close_world(&w);
  }
}

#define BODY_HEAD                                                                                            \
  "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "   \
  "1000000\r\n\r\n"

static void test_body(void **state)
{
  for (int late = 0; late < 2; late++) {
    world w;
    open_world(&w);
    say(&w, BODY_HEAD);
    assert_int_equal(w.c->state, TD_CONN_READING);
    uint64_t ms = option(&w, TD_LIMIT_HTTP_BODY_TIMEOUT_MS), grace = option(&w, TD_LIMIT_HTTP_BODY_GRACE_MS);
    w.c->pace.slot_end_ms = now_ms + ms + 1; /* its pace was good till then */
    td_conn_sweep(w.c, now_ms + ms + (uint64_t)late);
    const char *text = heard(&w);
    assert_int_equal(text != NULL, late);
    assert_int_equal(w.s->metrics.connections_cut[TD_CUT_BODY_TIMEOUT], late);
    if (late)
      assert_non_null(strstr(text, "\"the request body took too long\""));
    close_world(&w);

    open_world(&w); /* a body that is too slow over a whole window */
    say(&w, BODY_HEAD);
    uint64_t begin = now_ms;
    for (uint64_t at = 0; at < grace; at += grace / 16)
      td_conn_sweep(w.c, begin + at);
    assert_int_equal(n_cut(&w), 0);
    if (late)
      for (uint64_t at = grace; at < 3 * grace && n_cut(&w) == 0; at += grace / 16)
        td_conn_sweep(w.c, begin + at);
    text = heard(&w);
    assert_int_equal(w.s->metrics.connections_cut[TD_CUT_BODY_RATE], late);
    assert_int_equal(text && strstr(text, "\"the request body came too slowly\""), late);
    close_world(&w);
  }
}

/* While a peer does not read, its body need not arrive, and the stall limit applies to it. */
static void test_stall(void **state)
{
  static char big[4 << 20];
  for (int late = 0; late < 2; late++) {
    world w;
    open_world(&w);
    w.c->http.head.minor = 1;
    td_conn_stream_begin(w.c, "text/event-stream", NULL);
    w.c->state = TD_CONN_ANSWERING;
    memset(big, 'x', sizeof big);
    td_conn_stream_send(w.c, big, sizeof big);
    turn(&w);
    assert_true(w.c->uv.stream.write_queue_size > 0);
    assert_false(td_conn_writable(w.c));
    uint64_t ms = option(&w, TD_LIMIT_SSE_STALL_MS), now = w.c->progress_ms + 1000;
    td_conn_sweep(w.c, now); /* it has read some since, so the time starts there */
    assert_int_equal(w.c->progress_ms, now);
    td_conn_sweep(w.c, now + ms + (uint64_t)late);
    assert_int_equal(is_open(&w), !late);
    assert_int_equal(w.s->metrics.connections_cut[TD_CUT_STALL], late);
    close_world(&w);
  }
}

/* A stream is pinged when it has been silent for the limit; other answers are not. */
static void test_ping(void **state)
{
  for (int late = 0; late < 2; late++)
    for (int stream = 0; stream < 2; stream++) {
      world w;
      open_world(&w);
      w.c->http.head.minor = 1;
      if (stream)
        td_conn_stream_begin(w.c, "text/event-stream", NULL);
      w.c->state = TD_CONN_ANSWERING;
      now_ms += 1000;
      assert_int_equal(heard(&w) != NULL, stream);
      uint64_t ms = option(&w, TD_LIMIT_SSE_PING_MS);
      td_conn_sweep(w.c, now_ms + ms - 1 + (uint64_t)late);
      const char *text = heard(&w);
      assert_int_equal(text != NULL, stream && late);
      if (text)
        assert_string_equal(text, "8\r\n: ping\n\n\r\n");
      close_world(&w);
    }
}

static void test_linger(void **state)
{
  for (int late = 0; late < 2; late++) {
    world w;
    open_world(&w);
    say(&w, "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_non_null(heard(&w));
    assert_int_equal(w.c->state, TD_CONN_LINGERING);
    td_conn_sweep(w.c, now_ms + td_limit_max(TD_LIMIT_HTTP_LINGER_MS) + (uint64_t)late);
    assert_int_equal(is_open(&w), !late);
    close_world(&w);
  }
}

/* When the next process takes over: a client that has just connected, or just got an answer, may have a
 * request on the wire. */
static void test_hand_over(void **state)
{
  for (int answered = 0; answered < 2; answered++)
    for (int late = 0; late < 2; late++)
      for (int begun = 0; begun < 2; begun++) {
        world w;
        open_world(&w);
        if (answered) {
          say(&w, "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
          assert_non_null(heard(&w));
        }
        if (begun)
          say(&w, "GET /");
        td_conn_hand_over(w.c, now_ms + (answered || begun ? 100 : 1000) - 1 + (uint64_t)late);
        assert_int_equal(is_open(&w), begun || !late);
        close_world(&w);
      }
}

/* ---- answers ---- */

static void test_heads_of_answers(void **state)
{
  static const struct {
    const char *request, *begins, *has, *has_not;
  } all[] = {
      {"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200 OK\r\nserver: tandem\r\ndate: ",
       "\r\ncontent-type: application/json\r\n", "connection: "},
      {"GET /version HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n", "\r\nconnection: close\r\n", "keep-alive"},
      {"GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "HTTP/1.1 200 OK\r\n",
       "\r\nconnection: keep-alive\r\n", "connection: close"},
      {"HEAD /version HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200 OK\r\n",
       "\r\ncontent-length: ", "version\":"},
      {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 204 No Content\r\n",
       "\r\nallow: GET, HEAD, POST, OPTIONS\r\n", "content-length"},
      {"OPTIONS /version HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 204 No Content\r\n",
       "\r\nallow: GET, HEAD, OPTIONS\r\n", "POST"},
      {"OPTIONS /tokenize HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 204 No Content\r\n",
       "\r\nallow: POST, OPTIONS\r\n", "GET"},
      {"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\n\r\n", "HTTP/1.1 200 OK\r\n",
       "\r\nx-request-id: mine\r\n", "req-"},
      {"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a b\r\n\r\n", "HTTP/1.1 200 OK\r\n",
       "\r\nx-request-id: req-", "a b"},
      {"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404 Not Found\r\n",
       "\"code\":\"not_found\"", "is one"},
      {"GET /completions HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404 Not Found\r\n",
       "no such route: /completions; /v1/completions is one", "retry-after"},
      {"GET /v1/version/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404 Not Found\r\n",
       "; /version is one", NULL},
      {"POST /version HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
       "HTTP/1.1 405 Method Not Allowed\r\n", "\r\nallow: GET, HEAD, OPTIONS\r\n", NULL},
      {"GET /tokenize HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 405 Method Not Allowed\r\n",
       "\r\nallow: POST, OPTIONS\r\n", NULL},
      {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
       "HTTP/1.1 415 Unsupported Media Type\r\n", "and there is none", NULL},
      {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: "
       "2\r\n\r\n{}",
       "HTTP/1.1 415 Unsupported Media Type\r\n", "not 'text/plain'", NULL},
      {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Encoding: "
       "gzip\r\n"
       "Content-Length: 2\r\n\r\n{}",
       "HTTP/1.1 415 Unsupported Media Type\r\n", "bodies with a Content-Encoding are not accepted", NULL},
      {"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
       "2\r\n\r\n{}",
       "HTTP/1.1 404 Not Found\r\n", "\"code\":\"not_served\"", NULL},
      {"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200 OK\r\n",
       "\r\n\r\n{\"status\":\"ok\"}", "retry-after"},
      {"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200 OK\r\n",
       "\r\n\r\n{\"status\":\"ready\"}", "retry-after"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    world w;
    open_world(&w);
    say(&w, all[i].request);
    const char *text = heard(&w);
    if (!text || strncmp(text, all[i].begins, strlen(all[i].begins)) != 0 || !strstr(text, all[i].has) ||
        (all[i].has_not && strstr(text, all[i].has_not)))
      fail_msg("%s is answered %s", all[i].request, text ? text : "not at all");
    int status = atoi(all[i].begins + 9);
    for (int k = 0; k < 6; k++) /* each answer counts once, in its class */
      assert_int_equal(w.s->metrics.responses[k], k == status / 100);
    close_world(&w);
  }
}

/* A request id of the maximum length, and a longer one. */
static void test_request_ids(void **state)
{
  size_t most = td_limit_max(TD_LIMIT_REQUEST_ID_BYTES);
  for (size_t n = most; n <= most + 1; n++) {
    world w;
    char text[1000], id[300];
    memset(id, 'i', sizeof id);
    snprintf(text, sizeof text, "GET /version HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %.*s\r\n\r\n",
             (int)n, id);
    open_world(&w);
    say(&w, text);
    snprintf(text, sizeof text, "\r\nx-request-id: %.*s\r\n", (int)n, id);
    assert_int_equal(strstr(heard(&w), text) != NULL, n == most);
    close_world(&w);
  }
}

/* Requests sent together are answered in order, on one connection. The body of a request that is refused
 * early is not read as a request. */
static void test_pipelined(void **state)
{
  world w;
  open_world(&w);
  say(&w, "GET /version HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\r\n\r\nPOST /nowhere "
          "HTTP/1.1\r\nHost: localhost\r\n"
          "Content-Length: 5\r\nX-Request-Id: b\r\n\r\nGET /GET /health HTTP/1.1\r\nHost: "
          "localhost\r\nX-Request-Id: c\r\n\r\n");
  const char *text = heard(&w), *a = strstr(text, "x-request-id: a"), *b = strstr(text, "x-request-id: b"),
             *c = strstr(text, "x-request-id: c");
  assert_true(a && b && c && a < b && b < c);
  assert_true(w.s->metrics.responses[2] == 2 && w.s->metrics.responses[4] == 1);
  assert_int_equal(w.c->state, TD_CONN_READING);
  close_world(&w);
}

/* However little the client reads at a time, it gets the whole answer exactly once. */
static void test_pieces(void **state)
{
  static const int most[] = {INT_MAX, 0, 1, 2, 100};
  char whole[2000] = "";
  for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
    world w;
    open_world(&w);
    most_at_once = most[i];
    say(&w, "GET /version HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\r\n\r\n");
    const char *text = heard(&w);
    most_at_once = INT_MAX;
    assert_non_null(text);
    if (i == 0)
      snprintf(whole, sizeof whole, "%s", text);
    assert_int_equal(strlen(text), strlen(whole)); /* the date may be another */
    assert_string_equal(strstr(text, "\r\nx-request-id"), strstr(whole, "\r\nx-request-id"));
    assert_int_equal(w.c->out.len_bytes, 0);
    close_world(&w);
  }
}

/* ---- drain ---- */

/* A drain is over when nothing must be answered or sent, and no client must be waited for. */
static void test_end_of_a_drain(void **state)
{
  enum { OVER, NO_DRAIN, A_CALL, UNSENT, AFTER_A_FAILURE, HANDS_OVER, HANDED_OVER, CASES };
  for (int i = 0; i < CASES; i++) {
    world w;
    open_world(&w);
    w.s->draining = i != NO_DRAIN;
    w.s->n_calls = i == A_CALL;
    if (i == UNSENT)
      td_buf_append_str(&w.c->out, "x");
    if (i == AFTER_A_FAILURE)
      w.s->answers_until_ms = uv_now(&w.s->loop) + 1;
    w.s->handing_over = i == HANDS_OVER || i == HANDED_OVER;
    if (i == HANDED_OVER)
      w.c->state = TD_CONN_ANSWERING; /* a watcher, which will not send another request */
    td_server_stop_if_drained(w.s);
    assert_int_equal(w.s->stopping, i == OVER || i == HANDED_OVER);
    w.s->draining = false;
    w.s->n_calls = 0;
    close_world(&w);
  }
}

/* ---- health ---- */

/* The longest time that a step may take: the operator's value, that of the longest prediction, or the
 * default. */
static void test_health(void **state)
{
  uint64_t least = 1000 * td_limit_max(TD_LIMIT_HEALTH_LEAST_MS),
           unknown = 1000 * td_limit_max(TD_LIMIT_HEALTH_STEP_UNKNOWN_MS),
           times = td_limit_max(TD_LIMIT_HEALTH_STEP_TIMES);
  const struct {
    uint64_t set_ms, predicted_us, stall_us;
  } cases[] = {{5000, 0, 5000000},
               {5000, 1 << 30, 5000000},
               {0, 0, unknown},
               {0, 1, least},
               {0, least, least * times}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int late = 0; late < 2; late++)
      for (int busy = 0; busy < 4; busy++) {
        world w;
        open_world(&w);
        w.options.limit[TD_LIMIT_HEALTH_STALL_MS] = (double)cases[i].set_ms;
        stats = (td_engine_stats){.longest_predicted_us = cases[i].predicted_us,
                                  .heartbeat_us = 1000,
                                  .in_step = busy == 1,
                                  .n_running = busy == 2,
                                  .n_waiting = busy == 3};
        clock_us = 1000 + cases[i].stall_us - 1 + (uint64_t)late;
        const char *trouble = td_server_unhealthy_reason(w.s);
        assert_int_equal(trouble != NULL, busy && late);
        if (trouble)
          assert_string_equal(trouble, "engine: a step does not end");
        w.s->engine_state = TD_ENGINE_LOADING;
        assert_null(td_server_unhealthy_reason(w.s));
        w.s->engine_state = TD_ENGINE_READY;
        clock_us = 999; /* the beat is of a moment later than the look at the clock */
        assert_null(td_server_unhealthy_reason(w.s));
        close_world(&w);
      }
  static const struct {
    td_engine_state state;
    bool draining;
    const char *health, *ready;
  } states[] = {
      {TD_ENGINE_LOADING, false, "{\"status\":\"ok\"}", "{\"status\":\"loading\"}"},
      {TD_ENGINE_READY, true, "{\"status\":\"ok\"}", "{\"status\":\"draining\"}"},
      {TD_ENGINE_FAILED, false, "{\"status\":\"unhealthy\",\"reason\":\"engine: it has stopped\"}",
       "{\"status\":\"unhealthy\",\"reason\":\"engine: it has stopped\"}"},
      {TD_ENGINE_STOPPED, false, "{\"status\":\"unhealthy\",\"reason\":\"engine: it has stopped\"}",
       "{\"status\":\"unhealthy\",\"reason\":\"engine: it has stopped\"}"},
  };
  for (size_t i = 0; i < sizeof states / sizeof *states; i++)
    for (int ready = 0; ready < 2; ready++) {
      world w;
      open_world(&w);
      w.s->engine_state = states[i].state;
      w.s->draining = states[i].draining;
      w.s->stopping = true; /* nothing of the loop's end here */
      say(&w, ready ? "GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
                    : "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
      const char *text = heard(&w), *want = ready ? states[i].ready : states[i].health;
      assert_non_null(text);
      assert_string_equal(strstr(text, "\r\n\r\n") + 4, want);
      bool good = strcmp(want, "{\"status\":\"ok\"}") == 0;
      assert_true(strncmp(text, good ? "HTTP/1.1 200" : "HTTP/1.1 503", 12) == 0);
      assert_int_equal(strstr(text, "\r\nretry-after: 2\r\n") != NULL, !good);
      close_world(&w);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_idle),        cmocka_unit_test(test_head),
      cmocka_unit_test(test_body),        cmocka_unit_test(test_stall),
      cmocka_unit_test(test_ping),        cmocka_unit_test(test_linger),
      cmocka_unit_test(test_hand_over),   cmocka_unit_test(test_heads_of_answers),
      cmocka_unit_test(test_request_ids), cmocka_unit_test(test_end_of_a_drain),
      cmocka_unit_test(test_pieces),      cmocka_unit_test(test_pipelined),
      cmocka_unit_test(test_health),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
