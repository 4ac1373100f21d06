/* Memory runs out while a request is read or answered: the client gets 503 out_of_memory or a cut
 * connection, and never an incomplete answer that looks complete. Each allocation in turn fails, alone and
 * with all that follow. */
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"
#include "server_world_fixture.h"

/* ---- faults ---- */

static int n_before_fault = -1; /* number of calls that succeed; -1: all */
static bool only_one;           /* those after it succeed again */
static int n_allocations;

static bool may_allocate(void)
{
  n_allocations++;
  if (n_before_fault < 0)
    return true;
  if (n_before_fault-- > 0)
    return true;
  if (!only_one)
    n_before_fault = 0;
  return false;
}

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n) { return may_allocate() ? __real_realloc(p, n) : NULL; }

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n) { return may_allocate() ? __real_malloc(n) : NULL; }

/* ---- an engine that answers from here ---- */

static td_engine_info info;

const td_engine_info *__wrap_td_engine_get_info(const td_engine *e);
const td_engine_info *__wrap_td_engine_get_info(const td_engine *e) { return &info; }
void __wrap_td_engine_get_stats(const td_engine *e, td_engine_stats *out);
void __wrap_td_engine_get_stats(const td_engine *e, td_engine_stats *out) { memset(out, 0, sizeof *out); }
void __wrap_td_engine_step_errors(const td_engine *e, double *median, double *p99);
void __wrap_td_engine_step_errors(const td_engine *e, double *median, double *p99) { *median = *p99 = 0; }
bool __wrap_td_engine_get_gpu(const td_engine *e, td_engine_gpu *out);
bool __wrap_td_engine_get_gpu(const td_engine *e, td_engine_gpu *out)
{
  *out = (td_engine_gpu){.watts = 300, .celsius = NAN, .knows_slowed = true};
  return true;
}
void __wrap_td_engine_release(td_engine *e, td_ticket t);
void __wrap_td_engine_release(td_engine *e, td_ticket t) {}

/* The text of a token is " token"; at the end " end" was still held back. */
void __wrap_td_text_stream_push(td_text_stream *s, const int32_t *ids, size_t n, td_buf *out);
void __wrap_td_text_stream_push(td_text_stream *s, const int32_t *ids, size_t n, td_buf *out)
{
  for (size_t i = 0; i < n; i++)
    td_buf_append_str(out, " token");
}
void __wrap_td_text_stream_finish(td_text_stream *s, td_buf *out);
void __wrap_td_text_stream_finish(td_text_stream *s, td_buf *out) { td_buf_append_str(out, " end"); }

void __wrap_td_engine_token_bytes(const td_engine *e, int32_t id, td_buf *out);
void __wrap_td_engine_token_bytes(const td_engine *e, int32_t id, td_buf *out)
{
  td_buf_printf(out, " token %d", (int)id);
}

/* ---- the log lines of requests ---- */

static struct {
  int n, status;
  char code[32], finish[32];
} logged;

void __wrap_td_log_event(td_log_level level, const char *event, const td_log_field *fields, size_t n);
void __wrap_td_log_event(td_log_level level, const char *event, const td_log_field *fields, size_t n)
{
  assert_string_equal(event, "request");
  logged.n++;
  logged.code[0] = logged.finish[0] = '\0';
  for (size_t i = 0; i < n; i++) {
    if (strcmp(fields[i].name, "status") == 0)
      logged.status = (int)fields[i].number;
    if (strcmp(fields[i].name, "code") == 0)
      snprintf(logged.code, sizeof logged.code, "%s", fields[i].text);
    if (strcmp(fields[i].name, "finish") == 0)
      snprintf(logged.finish, sizeof logged.finish, "%s", fields[i].text);
  }
}

/* ---- a connection with a client at its other end ---- */

static void open_world(world *w)
{
  n_before_fault = -1;
  strcpy(info.model_name, "a-model-with-a-rather-long-name");
  info.max_context_tokens = 100;
  make_world(w);
}

/* Runs the server until it waits; returns what the client then has. */
static size_t turn(world *w, char *text, size_t max)
{
  size_t n = 0;
  for (int i = 0; i < 10; i++) {
    uv_run(&w->s->loop, UV_RUN_NOWAIT);
    td_conn_flush_all(w->s);
    ssize_t r = recv(w->client, text + n, max - 1 - n, MSG_DONTWAIT);
    n += r > 0 ? (size_t)r : 0;
  }
  text[n] = '\0';
  return n;
}

/* The status, and the body as JSON; 0: there is no whole answer. */
static int read_answer(const char *text, size_t n, cJSON **json, const char **body)
{
  const char *end = strstr(text, "\r\n\r\n"), *length = strstr(text, "content-length: ");
  int status = 0;
  *json = NULL;
  *body = "";
  if (n == 0 || !end || !length || length > end || end + 4 + strtoul(length + 16, NULL, 10) != text + n)
    return 0;
  assert_int_equal(sscanf(text, "HTTP/1.1 %d ", &status), 1);
  *body = end + 4;
  *json = cJSON_Parse(*body);
  return status;
}

static const char *code_of(const cJSON *json)
{
  const cJSON *error = json ? td_json_get(json, "error") : NULL;
  return error ? td_json_get(error, "code")->valuestring : "";
}

/* ---- answers ---- */

typedef void answer_fn(world *w);
typedef bool whole_fn(const cJSON *json, const char *body);

/* Runs `answer` with every allocation failing in turn: it is complete, an error, or cut off. */
static void try_each(answer_fn *answer, whole_fn *whole)
{
  static char text[65536];
  int n = 1, outcomes[3] = {0};
  for (int one = 0; one < 2; one++)
    for (int at = 0; at <= n; at++) { /* at n none fails */
      world w;
      cJSON *json;
      const char *body;
      open_world(&w);
      only_one = one == 1;
      n_allocations = 0;
      n_before_fault = at;
      answer(&w);
      size_t got = turn(&w, text, sizeof text);
      n_before_fault = -1;
      n = n_allocations > n ? n_allocations : n;
      int status = read_answer(text, got, &json, &body);
      if (status == 200) {
        assert_true(whole(json, body));
        outcomes[0]++;
      } else if (status != 0) {
        assert_int_equal(status, 503);
        assert_string_equal(logged.code, "out_of_memory");
        assert_string_equal(code_of(json), "out_of_memory");
        outcomes[1]++;
      } else { /* the connection is closed, so the rest is not needed */
        assert_null(w.s->conns);
        assert_int_equal(w.s->metrics.connections_cut[TD_CUT_MEMORY], 1);
        outcomes[2]++;
      }
      cJSON_Delete(json);
      close_world(&w);
    }
  for (int i = 0; i < 3; i++)
    assert_int_not_equal(outcomes[i], 0); /* all three were seen, so faults did reach it */
}

static void ask(world *w, const char *path)
{
  char text[200];
  int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
  assert_int_equal(send(w->client, text, (size_t)n, 0), n);
}

static void ask_models(world *w) { ask(w, "/v1/models"); }
static void ask_model(world *w) { ask(w, "/v1/models/a-model-with-a-rather-long-name"); }
static void ask_metrics(world *w) { ask(w, "/metrics"); }

static bool is_models(const cJSON *json, const char *body)
{
  return json && strcmp(td_json_get(cJSON_GetArrayItem(td_json_get(json, "data"), 0), "id")->valuestring,
                        info.model_name) == 0;
}

static bool is_model(const cJSON *json, const char *body)
{
  return json && td_json_get(json, "max_model_len")->valueint == 100;
}

static bool is_metrics(const cJSON *json, const char *body)
{
  return strstr(body, "# HELP vllm:num_requests_running") && strstr(body, "tandem:connections_cut_total{") &&
         strstr(body, "tandem:request_queue_time_predicted_seconds_count{");
}

static void test_models(void **state) { try_each(ask_models, is_models); }
static void test_model(void **state) { try_each(ask_model, is_model); }
static void test_metrics(void **state) { try_each(ask_metrics, is_metrics); }

/* A call with one choice, whose answer the engine has produced: tokens after one prompt token. */
static td_call *make_call(world *w, const int32_t *tokens, uint32_t n_generated)
{
  td_call *call = calloc(1, sizeof *call);
  td_choice *ch = calloc(1, sizeof *ch);
  assert_true(call && ch);
  *call = (td_call){.server = w->s,
                    .conn = w->c,
                    .api = &td_api_completions,
                    .info = &info,
                    .request.has_answer = true,
                    .generating = true,
                    .choices = ch,
                    .n_choices = 1,
                    .n_open = 1};
  td_buf_init(&call->answer, (size_t)td_option(&w->options, TD_LIMIT_ANSWER_BYTES));
  call->prompts = calloc(1, sizeof *call->prompts);
  call->n_prompts = 1;
  call->tenant = td_tenant_of(&w->s->tenants, w->c, 0);
  call->tenant->n_choices = 1;
  *ch = (td_choice){.call = call,
                    .tokens = tokens,
                    .n_prompt = 1,
                    .n_generated = n_generated,
                    .engine_finish = TD_FINISH_LENGTH};
  td_stop_filter_init(&ch->filter, &call->request.stops);
  w->s->calls = call;
  w->s->n_calls = w->s->n_choices = 1;
  w->c->call = call;
  w->c->state = TD_CONN_ANSWERING;
  w->c->keep_alive = true;
  w->c->http.head.minor = 1;
  return call;
}

/* Its last text is sent after all tokens. */
static void end_answer(world *w)
{
  static const int32_t tokens[] = {1, 2, 3};
  int faults = n_before_fault;
  n_before_fault = -1;
  td_call *call = make_call(w, tokens, 2);
  n_allocations = 0;
  n_before_fault = faults;
  td_generation_pump(call);
}

/* With all log-probabilities a token takes about a kilobyte. The part of a stream that is rendered at a time
 * depends on the memory it may hold, not on the number of available tokens. */
static void test_logprobs_are_rendered_in_pieces(void **state)
{
  enum { N = 500 };
  static int32_t tokens[N + 1];
  static td_token_logprob logprobs[N];
  static td_top_token top[N * TD_TOP_TOKENS_MAX];
  world w;
  for (int i = 0; i < N * TD_TOP_TOKENS_MAX; i++)
    top[i] = (td_top_token){.id = i, .logprob = -1.5f};
  open_world(&w);
  td_call *call = make_call(&w, tokens, N);
  call->request = (td_api_request){.stream = true,
                                   .has_answer = true,
                                   .wants_logprobs = true,
                                   .top_logprobs = TD_TOP_TOKENS_MAX,
                                   .n_top = TD_TOP_TOKENS_MAX};
  call->choices[0].engine_logprobs = logprobs;
  call->choices[0].engine_top = top;
  td_conn_stream_begin(w.c, "text/event-stream", "");
  td_generation_pump(call);
  size_t may = (size_t)td_option(&w.options, TD_LIMIT_SSE_QUEUE_BYTES) / 16;
  assert_in_range(w.c->out.len_bytes, may, 2 * may);
  assert_in_range(call->choices[0].n_read, 1, N / 2);
  close_world(&w);
}

/* The log has one line for a body that is sent without a copy, whatever fails. */
static void test_long_body_is_told(void **state)
{
  static const char letters[100000];
  int n_whole = 0, n_failed = 0;
  for (int at = 0; n_whole == 0; at++) {
    world w;
    td_buf body;
    open_world(&w);
    td_buf_init(&body, 0);
    td_buf_append(&body, letters, sizeof letters);
    w.c->keep_alive = true;
    w.c->note.is_call = true;
    logged.n = 0;
    only_one = true;
    n_before_fault = at;
    td_conn_respond_buf(w.c, 200, "text/plain", NULL, &body);
    n_whole += n_before_fault >= 0;
    n_failed += n_before_fault < 0;
    n_before_fault = -1;
    assert_int_equal(logged.n, 1);
    bool is_cut = w.c->state == TD_CONN_CLOSING;
    assert_int_equal(logged.status, 200); /* as the head has it, which may be sent */
    assert_string_equal(logged.code, is_cut ? "out_of_memory" : "");
    assert_string_equal(logged.finish, is_cut ? "abort" : "");
    td_buf_deinit(&body);
    close_world(&w);
  }
  assert_true(n_failed >= 2); /* the request to write of the head, and of the body */
}

static bool is_answer(const cJSON *json, const char *body)
{
  return json && strcmp(td_json_get(cJSON_GetArrayItem(td_json_get(json, "choices"), 0), "text")->valuestring,
                        " token token end") == 0;
}

static void test_answer(void **state) { try_each(end_answer, is_answer); }

/* All memory of an answer is freed: after a few rounds, more answers take no more. */
static void test_nothing_stays(void **state)
{
  static char text[65536];
  size_t held[2];
  for (int round = 0; round < 40; round++) {
    world w;
    cJSON *json;
    const char *body;
    open_world(&w);
    end_answer(&w);
    assert_int_equal(read_answer(text, turn(&w, text, sizeof text), &json, &body), 200);
    cJSON_Delete(json);
    close_world(&w);
    held[round >= 20] = mallinfo2().uordblks;
  }
  assert_int_equal(held[1], held[0]);
}

/* ---- requests ---- */

/* Reading fails of the server, not of the client: 503, never a 4xx. */
static void test_request(void **state)
{
  static const char head[] = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                             "application/json\r\nContent-Length: 5000\r\n";
  char body[5000];
  int told = 0;
  memset(body, ' ', sizeof body);
  for (int at = 0; at < 12; at++) {
    td_http h;
    size_t used, more;
    n_before_fault = -1;
    td_http_init(&h, 10000);
    n_before_fault = at;
    only_one = true;
    td_http_event e = td_http_feed(&h, head, sizeof head - 1, &used);
    if (e == TD_HTTP_MORE)
      e = td_http_feed(&h, "\r\n", 2, &used);
    for (size_t i = 0; e != TD_HTTP_IS_ERROR && i < sizeof body; i += 100)
      e = td_http_feed(&h, body + i, 100, &more);
    n_before_fault = -1;
    if (e == TD_HTTP_IS_ERROR) {
      assert_int_equal(h.error_status, 503);
      told++;
    } else {
      assert_int_equal(e, TD_HTTP_IS_DONE);
    }
    td_http_deinit(&h);
  }
  assert_true(told > 4);
}

/* The same for a connection; the code names it. */
static void test_request_of_a_connection(void **state)
{
  static char text[4096];
  world w;
  cJSON *json;
  const char *body;
  open_world(&w);
  ask_models(&w);
  only_one = true;
  n_before_fault = 0; /* the head's */
  size_t n = turn(&w, text, sizeof text);
  assert_int_equal(read_answer(text, n, &json, &body), 503);
  assert_string_equal(code_of(json), "out_of_memory");
  assert_non_null(strstr(text, "retry-after: "));
  cJSON_Delete(json);
  close_world(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_models),
      cmocka_unit_test(test_model),
      cmocka_unit_test(test_metrics),
      cmocka_unit_test(test_answer),
      cmocka_unit_test(test_long_body_is_told),
      cmocka_unit_test(test_nothing_stays),
      cmocka_unit_test(test_request),
      cmocka_unit_test(test_request_of_a_connection),
      cmocka_unit_test(test_logprobs_are_rendered_in_pieces),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
