/* From events to figures: percentiles compared with NumPy's, event streams split at every byte, token
 * counts however a server reports them, figures of hand-made records, and floors compared with published
 * figures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/record.h"
#include "loadgen/shapes.h"
#include "loadgen/tool.h"

#define NEAR(a, b) assert_true(fabs((double)(a) - (double)(b)) <= 1e-8 * (1 + fabs((double)(b))))

static void test_percentiles(void **state)
{
  static const double v[] = {3, 1, 4, 1, 5, 9, 2, 6};
  td_stats_list l = {0};
  td_stats_summary empty = td_stats_summarise(&l);
  assert_true(empty.n == 0 && isnan(empty.p50) && isnan(empty.max));
  for (int i = 0; i < 8; i++)
    td_stats_add(&l, v[i]);
  td_stats_summary s = td_stats_summarise(&l);
  NEAR(s.min, 1); /* np.percentile([...], (0, 50, 90, 99, 100)) */
  NEAR(s.p50, 3.5);
  NEAR(s.p90, 6.9);
  NEAR(s.p99, 8.79);
  NEAR(s.max, 9);
  NEAR(s.mean, 31.0 / 8);
  td_stats_deinit(&l);
}

/* ---- event streams ---- */

typedef struct seen {
  char text[512];
} seen;

static void note(void *arg, const char *json, size_t n)
{
  seen *s = arg;
  snprintf(s->text + strlen(s->text), sizeof s->text - strlen(s->text), "<%.*s>", (int)n, json);
}

static void test_stream_pieces(void **state)
{
  static const char stream[] =
      ": ping\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:{\"b\":2}\n\ndata: [DONE]\n\n";
  for (size_t cut = 0; cut < sizeof stream; cut++)
    for (size_t cut2 = cut; cut2 < sizeof stream; cut2 += 7) {
      td_sse s;
      seen got = {""};
      td_sse_init(&s);
      assert_true(td_sse_feed(&s, stream, cut, note, &got));
      assert_true(td_sse_feed(&s, stream + cut, cut2 - cut, note, &got));
      assert_true(td_sse_feed(&s, stream + cut2,
                              sizeof stream - 1 - (cut2 < sizeof stream - 1 ? cut2 : sizeof stream - 1), note,
                              &got));
      assert_string_equal(got.text, "<{\"a\":1}><{\"b\":2}><[DONE]>");
      td_sse_deinit(&s);
    }
}

static void test_endless_line(void **state)
{
  td_sse s;
  seen got = {""};
  static char chunk[65536];
  bool ok = true;
  memset(chunk, 'x', sizeof chunk);
  td_sse_init(&s);
  for (int i = 0; i < 32 && ok; i++)
    ok = td_sse_feed(&s, chunk, sizeof chunk, note, &got);
  assert_false(ok);
  td_sse_deinit(&s);
}

static td_event read_event(const char *json)
{
  td_event e;
  td_event_read(json, strlen(json), &e);
  return e;
}

static void test_events(void **state)
{
  assert_int_equal(read_event("[DONE]").kind, TD_EVENT_DONE);
  assert_int_equal(read_event("{\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}").kind,
                   TD_EVENT_TOKENS);
  assert_int_equal(read_event("{\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}").kind,
                   TD_EVENT_TOKENS);
  assert_int_equal(read_event("{\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}").kind,
                   TD_EVENT_TOKENS);
  assert_int_equal(read_event("{\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}").kind,
                   TD_EVENT_MAYBE);
  td_event e =
      read_event("{\"choices\":[{\"text\":\"\",\"token_ids\":[1,2,3],\"finish_reason\":\"length\"}]}");
  assert_true(e.kind == TD_EVENT_TOKENS && e.n_tokens == 3 && e.counted);
  e = read_event("{\"choices\":[{\"text\":\"]\",\"prompt_token_ids\":[4,5],\"token_ids\":[6,7]}],"
                 "\"usage\":{\"prompt_tokens\":2}}");
  assert_true(e.kind == TD_EVENT_TOKENS && e.n_tokens == 2 && e.counted && e.usage_in == 2);
  e = read_event(
      "{\"choices\":[{\"text\":\"\\\"prompt_token_ids\\\":[1]\",\"token_ids\":[6]}]}"); /* in a text */
  assert_true(e.kind == TD_EVENT_TOKENS && e.n_tokens == 1 && e.counted);
  assert_int_equal(read_event("{\"choices\":[{\"prompt_token_ids\":[4,5").kind, TD_EVENT_BAD);
  e = read_event("{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9,\"prompt_tokens_"
                 "details\":{\"cached_tokens\":4}}}");
  assert_true(e.kind == TD_EVENT_NOTHING && e.has_usage && e.usage_in == 7 && e.usage_out == 9 &&
              e.usage_cached == 4);
  e = read_event("{\"error\":{\"message\":\"gone\"}}");
  assert_true(e.kind == TD_EVENT_ERROR && strcmp(e.error, "gone") == 0);
  static const char *const bad[] = {"", "{", "[]", "7", "null", "{\"choices\":"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(read_event(bad[i]).kind, TD_EVENT_BAD);
  static const char *const odd[] = {"{}", "{\"choices\":5}", "{\"choices\":[]}", "{\"usage\":[]}",
                                    "{\"error\":null}"};
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
    assert_int_equal(read_event(odd[i]).kind, TD_EVENT_NOTHING);
}

/* ---- records ---- */

static void take(td_record *r, const char *json, double at_s)
{
  td_event e = read_event(json);
  td_record_add_event(r, &e, at_s);
}

static const char token[] = "{\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}";
static const char last[] = "{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}";

static void test_last_event(void **state)
{
  /* the last token has no separate text (vLLM, tandem) */
  td_record r = {.n_out = 3};
  take(&r, token, 1);
  take(&r, token, 2);
  take(&r, last, 3);
  take(&r, "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":3}}", 3);
  take(&r, "[DONE]", 3);
  td_record_end(&r, 3.5);
  assert_true(r.result == TD_RESULT_DONE && r.n_token_events == 3 && td_record_tokens(&r) == 3);
  free(r.token_events);
  /* the end is a separate event (llama-server) */
  r = (td_record){.n_out = 9};
  take(&r, token, 1);
  take(&r, token, 2);
  take(&r, last, 3);
  take(&r, "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}", 3);
  td_record_end(&r, 3.5);
  assert_true(r.result == TD_RESULT_DONE && r.n_token_events == 2 && td_record_tokens(&r) == 2);
  free(r.token_events);
  /* a stream that breaks off */
  r = (td_record){.n_out = 9};
  take(&r, token, 1);
  td_record_end(&r, 2);
  assert_int_equal(r.result, TD_RESULT_NO_DONE);
  free(r.token_events);
  r = (td_record){.n_out = 9};
  take(&r, "{\"error\":{\"message\":\"gone\"}}", 1);
  take(&r, "[DONE]", 1);
  td_record_end(&r, 2);
  assert_int_equal(r.result, TD_RESULT_ERROR_EVENT);
}

/* Three requests with tokens every 10 ms from 100 ms on; one with a stall of 300 ms; one that failed; and a
 * warm-up request. */
static void make_records(td_record r[4])
{
  for (int i = 0; i < 4; i++) {
    r[i] = (td_record){.n_in = 50, .n_out = 11, .due_s = i, .sent_s = i, .warm = i == 3};
    for (int k = 0; k < (i == 2 ? 1 : 11); k++)
      take(&r[i], token, i + 0.1 + 0.01 * k + (i == 1 && k == 10 ? 0.29 : 0));
    if (i != 2)
      take(&r[i], "[DONE]", i + 1);
    td_record_end(&r[i], i + (i == 2 ? 0.15 : 0.6));
  }
}

static void test_measures(void **state)
{
  td_record r[4];
  td_record_measures m;
  td_measure_config c = {.slo_ttft_ms = 101, .slo_tbt_ms = 50, .stall_ms = {200, 500}};
  make_records(r);
  td_record_measure(r, 4, &c, &m);
  assert_int_equal(m.all.n_sent, 3);
  assert_int_equal(m.all.n_done, 2);
  assert_int_equal(m.all.by_result[TD_RESULT_NO_DONE], 1);
  assert_int_equal(m.all.tokens_out, 22);
  assert_true(fabs(m.all.ttft.p50 - 100) < 1e-6 && m.all.ttft.n == 3);
  assert_true(fabs(m.all.tbt.p50 - 10) < 1e-6 && m.all.tbt.n == 20 && fabs(m.all.tbt.max - 300) < 1e-6);
  assert_true(fabs(m.all.tpot.max - 39) < 1e-6 && fabs(m.all.e2e.min - 200) < 1e-6);
  assert_true(m.all.n_stalled[0] == 1 && m.all.n_stalled[1] == 0);
  assert_int_equal(m.all.n_good, 1); /* the p99 of the stalled one is above 50 ms */
  assert_true(fabs(m.all.seconds - 2.15) < 1e-9 &&
              fabs(m.all.out_tokens_per_s - 23 / 2.15) < 1e-6); /* the token of the failed one counts too */
  c.window_s = 1.155; /* tokens received until then: 11 of the first, 6 of the second */
  td_record_measure(r, 4, &c, &m);
  assert_true(fabs(m.all.out_tokens_per_s - 17 / 1.155) < 1e-6 &&
              fabs(m.all.requests_per_s - 1 / 1.155) < 1e-6);
  for (int i = 0; i < 4; i++)
    free(r[i].token_events);
}

static void test_while_all_decode(void **state)
{
  td_record r[2];
  td_record_measures m;
  td_measure_config c = {.slo_ttft_ms = 1e9, .slo_tbt_ms = 1e9, .stall_ms = {1e9, 1e9}};
  for (int i = 0; i < 2; i++) { /* the second starts 1 s later, and was four times slower before that */
    r[i] = (td_record){.n_in = 1, .n_out = 20};
    for (int k = 0; k < 20; k++)
      take(&r[i], token, 1.0 * i + 0.1 * k);
    take(&r[i], "[DONE]", 3);
    td_record_end(&r[i], 3);
  }
  td_record_measure(r, 2, &c, &m);
  assert_true(m.in_step && fabs(m.in_step_s - 0.9) < 1e-9 && m.in_step_tbt.n == 18);
  assert_true(fabs(m.in_step_tokens_per_s - 20) < 1e-6);
  for (int i = 0; i < 2; i++)
    free(r[i].token_events);
}

/* ---- options and floors ---- */

static void test_options(void **state)
{
  const char *text = NULL;
  double number = 0, list[3];
  bool flag = false;
  size_t n;
  td_error err;
  const td_arg args[] = {{"--text", "", "", TD_ARG_TEXT, &text},
                         {"--number", "", "", TD_ARG_NUMBER, &number},
                         {"--flag", NULL, "", TD_ARG_FLAG, &flag}};
  char *good[] = {"x", "--text", "a=b", "--number=2.5", "--flag"};
  assert_int_equal(td_tool_read_args(args, 3, 5, good, &err), TD_OK);
  assert_true(strcmp(text, "a=b") == 0 && number == 2.5 && flag);
  static char *const bad[][2] = {{"--numbe", "1"}, {"--number", "1x"}, {"--number", "inf"},
                                 {"--flag=1", ""}, {"text", ""},       {"", "--text"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char *argv[] = {"x", bad[i][0], bad[i][1]};
    assert_int_equal(td_tool_read_args(args, 3, 3, argv, &err), TD_ERR_CONFIG);
  }
  char *missing[] = {"x", "--text"};
  assert_int_equal(td_tool_read_args(args, 3, 2, missing, &err), TD_ERR_CONFIG);
  assert_int_equal(td_tool_read_list("1,2.5,3", list, 3, &n, &err), TD_OK);
  assert_true(n == 3 && list[1] == 2.5);
  assert_int_equal(td_tool_read_list("1,2,3,4", list, 3, &n, &err), TD_ERR_CONFIG);
  assert_int_equal(td_tool_read_list("1,,3", list, 3, &n, &err), TD_ERR_CONFIG);
  assert_int_equal(td_tool_read_list("1,", list, 3, &n, &err), TD_ERR_CONFIG);
}

/* Llama-3-8B: 15.01 GB and GFLOP a token, 131,072 bytes of KV, 262,144 P^2 of prefill attention. */
static void test_floors(void **state)
{
  td_model_desc d;
  td_error err;
  const td_ceiling c = {4.55e12, 790e12};
  assert_int_equal(td_shapes_find("llama3-8b", &d, &err), TD_OK);
  td_floor_model m = td_floor_make(&d, 15.01e9, 131072);
  assert_true(fabs(2 * (m.layer_parameters + m.head_parameters) - 15.01e9) < 0.01e9);
  assert_true(fabs(td_floor_decode_s(&m, &c, 1, 1024) - (15.01e9 + 1024 * 131072.0) / 4.55e12) < 1e-9);
  assert_true(fabs(td_floor_decode_s(&m, &c, 256, 1024) * 1e3 -
                   (15.01e9 / 4.55e12 + 256 * 1024 * 131072.0 / 4.55e12) * 1e3) < 1.7);
  double prefill = (13.96e9 * 8192 + 262144.0 * 8192 * 8192 + 1.05e9) / 790e12;
  assert_true(fabs(td_floor_prefill_s(&m, &c, 8192) / prefill - 1) < 1e-3);
  /* a chunk's attention alone: 524,288 (C c0 + C^2 / 2) */
  double chunk = td_floor_hybrid_s(&m, &c, 512, 16384, 0, 0) -
                 2 * (m.layer_parameters * 512 + m.head_parameters) / 790e12;
  assert_true(fabs(chunk / (524288.0 * (512.0 * 15872 + 512.0 * 256) / 790e12) - 1) < 1e-6);
  assert_int_equal(td_shapes_find("gpt-2", &d, &err), TD_ERR_CONFIG);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_percentiles),      cmocka_unit_test(test_stream_pieces),
      cmocka_unit_test(test_endless_line),     cmocka_unit_test(test_events),
      cmocka_unit_test(test_last_event),       cmocka_unit_test(test_measures),
      cmocka_unit_test(test_options),          cmocka_unit_test(test_floors),
      cmocka_unit_test(test_while_all_decode),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
