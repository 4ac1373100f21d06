/* Loads: the random numbers compared with NumPy's, presets compared with the script that defines them,
 * lengths and traces. NumPy 2 printed the expected values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "loadgen/cell.h"

#define NEAR(a, b) assert_true(fabs((double)(a) - (double)(b)) <= 1e-8 * (1 + fabs((double)(b))))

static void test_random(void **state)
{
  td_random r;
  td_random_init(&r, 1); /* default_rng(1) */
  assert_true(td_random_next(&r) == 0x8306bdf37922e4ffu);
  assert_true(td_random_next(&r) == 0xf35196bbc152a866u);
  td_random_init(&r, 1);
  assert_true(td_random_double(&r) == 0.51182162470025672);
  td_random_init(&r, ((uint64_t)1 << 40) + 5); /* a seed of two words */
  NEAR(td_random_double(&r), 0.00473945937449083);
  /* kinds in turn: a 32-bit number uses half of a 64-bit one and keeps the other half */
  static const double mixed[12] = {0.707529255791921, 0.29874553750847,   74021, 0.225207189990592,
                                   0.206532754016506, -0.991646554996462, 99287, 0.00526530456557472,
                                   2.80921576311078,  -0.49220651855133,  15242, 0.303032426819314};
  td_random_init(&r, 7);
  for (int i = 0; i < 12; i += 4) {
    NEAR(td_random_exponential(&r), mixed[i]);
    NEAR(td_random_normal(&r), mixed[i + 1]);
    assert_int_equal(td_random_below(&r, 128000), (int)mixed[i + 2]);
    NEAR(td_random_double(&r), mixed[i + 3]);
  }
}

/* Enough draws to reach every branch of the ziggurats, including their tails. */
static void test_many_draws(void **state)
{
  td_random r;
  double sum_e = 0, sum_n = 0, max_e = 0, max_n = 0, min_n = 0;
  td_random_init(&r, 3);
  for (int i = 0; i < 300000; i++) {
    double v = td_random_exponential(&r);
    sum_e += v;
    max_e = fmax(max_e, v);
  }
  for (int i = 0; i < 300000; i++) {
    double v = td_random_normal(&r);
    sum_n += v;
    max_n = fmax(max_n, v);
    min_n = fmin(min_n, v);
  }
  NEAR(sum_e, 300599.6598);
  NEAR(sum_n, 236.3398153);
  NEAR(max_e, 11.537212108);
  NEAR(max_n, 4.40272236311);
  NEAR(min_n, -5.00223578354);
}

static td_cell cells[TD_CELLS_MAX];

static td_load *preset(const char *name, double rate)
{
  td_error err;
  size_t n;
  assert_int_equal(td_preset_cells(name, &rate, rate > 0, 0, 1, cells, &n, &err), TD_OK);
  if (rate > 0)
    assert_int_equal(n, 1);
  return &cells[0].load;
}

static void test_arxiv(void **state)
{
  td_load *l = preset("arxiv", 2.0);
  uint64_t in = 0, out = 0;
  assert_int_equal(l->n, 170);
  for (size_t i = 0; i < l->n; i++) {
    in += l->requests[i].n_in;
    out += l->requests[i].n_out;
  }
  assert_int_equal(in, 1619078);
  assert_int_equal(out, 76693);
  NEAR(l->requests[0].due_s, 0.536514513);
  NEAR(l->requests[169].due_s, 89.9011073);
  assert_int_equal(l->requests[169].n_in, 4849);
  assert_int_equal(l->requests[169].n_out, 20);
  td_load_deinit(l);
  l = preset("arxiv", 1.5);
  assert_int_equal(l->n, 129);
  assert_int_equal(l->requests[0].n_in, 9150);
  td_load_deinit(l);
}

static void test_shared_prefixes(void **state)
{
  static const int tool[12] = {7, 5, 1, 2, 0, 4, 0, 0, 0, 0, 1, 6},
                   talk[12] = {0, 3, 3, 3, 1, 1, 3, 3, 3, 3, 2, 0};
  uint64_t seeds[8] = {0};
  td_load *l = preset("toolagent", 3);
  assert_int_equal(l->n, 184);
  NEAR(l->requests[183].due_s, 59.3214832);
  for (int i = 0; i < 12; i++) { /* equal prefixes have equal seeds, and different ones different seeds */
    const td_load_segment *s = &l->segments[l->requests[i].first_segment];
    assert_int_equal(l->requests[i].n_in, 8620);
    assert_true(seeds[tool[i]] == 0 || seeds[tool[i]] == s->seed);
    seeds[tool[i]] = s->seed;
    for (int k = 0; k < 8; k++)
      assert_true(k == tool[i] || seeds[k] != s->seed);
  }
  td_load_deinit(l);
  memset(seeds, 0, sizeof seeds);
  l = preset("conversation", 20);
  assert_int_equal(l->n, 1234);
  NEAR(l->requests[1233].due_s, 59.7386596);
  for (int i = 0; i < 12; i++) {
    const td_load_segment *s = &l->segments[l->requests[i].first_segment + 1];
    assert_int_equal(l->requests[i].n_in, 2769);
    assert_true(seeds[talk[i]] == 0 || seeds[talk[i]] == s->seed);
    seeds[talk[i]] = s->seed;
  }
  td_load_deinit(l);
}

static void test_presets(void **state)
{
  td_error err;
  size_t n;
  td_load *l = preset("chat", 16);
  double in = 0, out = 0;
  for (size_t i = 0; i < l->n; i++) {
    in += l->requests[i].n_in;
    out += l->requests[i].n_out;
  }
  assert_in_range(l->n, 850, 1070);
  assert_in_range((uint64_t)(in / (double)l->n), 2100, 2600);
  assert_in_range((uint64_t)(out / (double)l->n), 400, 480);
  td_load_deinit(l);
  l = preset("pod", 1);
  for (size_t i = 0; i < l->n; i++) {
    assert_int_equal(l->requests[i].n_in + l->requests[i].n_out, 16500);
    assert_in_range(l->requests[i].n_in / l->requests[i].n_out, 8, 24);
  }
  td_load_deinit(l);
  assert_int_equal(td_preset_cells("decode", NULL, 0, 0, 1, cells, &n, &err), TD_OK);
  assert_int_equal(n, 8);
  const td_load *many = &cells[5].load; /* prompts computed beforehand, with one token each */
  assert_true(cells[3].load.n == 64 && cells[3].n_warm == 0 && many->n == 512 && cells[5].n_warm == 256);
  for (size_t i = 0; i < 256; i++) {
    const td_load_request *before = &many->requests[i], *r = &many->requests[256 + i];
    assert_true(before->n_out == 1 && r->n_out == 256 && before->n_in == 1024 && r->n_in == 1024);
    assert_true(before->first_segment == r->first_segment && before->n_segments == r->n_segments);
  }
  for (size_t i = 0; i < n; i++)
    td_load_deinit(&cells[i].load);
  assert_int_equal(td_preset_cells("none", NULL, 0, 0, 1, cells, &n, &err), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "none"));
}

static void test_lengths(void **state)
{
  static const char *const bad[] = {
      "",      "x",      "1:2", "uniform:5", "uniform:9:5", "lognormal:10", "exp:1:2",
      "exp:0", "zipf:1", "5x",  "-3",        "nan",         "exp:1:2:3:4"};
  td_load_length len;
  td_error err;
  td_random r;
  td_random_init(&r, 1);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(td_load_read_length(bad[i], &len, &err), TD_ERR_CONFIG);
  assert_int_equal(td_load_read_length("77", &len, &err), TD_OK);
  assert_int_equal(td_load_draw_length(&len, &r), 77);
  assert_int_equal(td_load_read_length("uniform:3:5", &len, &err), TD_OK);
  int seen[6] = {0};
  for (int i = 0; i < 300; i++)
    seen[td_load_draw_length(&len, &r)]++;
  assert_true(seen[3] > 60 && seen[4] > 60 && seen[5] > 60 && seen[3] + seen[4] + seen[5] == 300);
  assert_int_equal(td_load_read_length("lognormal:1000:500:200:3000", &len, &err), TD_OK);
  double sum = 0;
  for (int i = 0; i < 20000; i++) {
    uint32_t v = td_load_draw_length(&len, &r);
    assert_in_range(v, 200, 3000);
    sum += v;
  }
  assert_in_range((uint64_t)sum / 20000, 960, 1020);
}

static void test_arrivals(void **state)
{
  td_load a = {0}, b = {0};
  td_load_spec spec = {.seed = 9,
                       .rate = 50,
                       .seconds = 40,
                       .in = {TD_LOAD_UNIFORM, 10, 90, 1, 1e8},
                       .out = {TD_LOAD_FIXED, 8, 0, 1, 1e8}};
  td_load_make(&a, &spec);
  assert_in_range(a.n, 1850, 2150); /* 2000 +- 45 */
  for (size_t i = 1; i < a.n; i++)
    assert_true(a.requests[i].due_s >= a.requests[i - 1].due_s && a.requests[i].due_s < 40);
  spec.rate = 25;
  spec.max_requests = 100;
  td_load_make(&b, &spec);
  assert_int_equal(b.n, 100);
  for (size_t i = 0; i < b.n; i++) { /* the same requests at half the rate */
    NEAR(b.requests[i].due_s, 2 * a.requests[i].due_s);
    assert_int_equal(b.requests[i].n_in, a.requests[i].n_in);
  }
  td_load_deinit(&a);
  td_load_deinit(&b);
}

static int count(const char *text, char c)
{
  int n = 0;
  for (; *text; text++)
    n += *text == c;
  return n;
}

static void test_prompts(void **state)
{
  td_load l = {0};
  td_buf a, b;
  td_load_tokens t = {.first = 300, .vocab = 305};
  td_buf_init(&a, 0);
  td_buf_init(&b, 0);
  td_load_add_request(&l, 0, 1);
  td_load_add_segment(&l, 1, 100);
  td_load_add_segment(&l, 2, 50);
  td_load_add_request(&l, 0, 1);
  td_load_add_segment(&l, 1, 100);
  td_load_add_segment(&l, 3, 50);
  td_load_prompt(&l, &l.requests[0], &t, &a);
  td_load_prompt(&l, &l.requests[1], &t, &b);
  assert_int_equal(count(a.data, ','), 149);
  assert_memory_equal(a.data, b.data, 400); /* "[" and a hundred times "30x," */
  assert_true(strcmp(a.data, b.data) != 0);
  assert_true(a.data[0] == '[' && a.data[a.len_bytes - 1] == ']');
  for (const char *p = a.data + 1; *p && *p != ']'; p += 4)
    assert_in_range(atoi(p), 300, 304);
  td_buf_clear(&a);
  t.text = true;
  td_load_prompt(&l, &l.requests[0], &t, &a);
  assert_int_equal(count(a.data, ' '), 149);
  assert_true(a.data[0] == '"' && a.data[a.len_bytes - 1] == '"' && count(a.data, '"') == 2);
  td_buf_deinit(&a);
  td_buf_deinit(&b);
  td_load_deinit(&l);
}

static void test_trace(void **state)
{
  static const char text[] =
      "{\"timestamp\": 27482, \"input_length\": 1100, \"output_length\": 52, \"hash_ids\": [46, 47, 2366]}\n"
      "\n"
      "{\"timestamp\": 30482, \"input_length\": 700, \"output_length\": 26, \"hash_ids\": [46, 48]}\r\n"
      "{\"timestamp\": 28482, \"input_length\": 5, \"output_length\": 1}\n";
  char path[] = "/tmp/tandem-trace-XXXXXX";
  td_load l = {0};
  td_error err;
  int fd = mkstemp(path);
  assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
  close(fd);
  assert_int_equal(td_load_read_trace(&l, path, 2, 0, &err), TD_OK);
  unlink(path);
  assert_int_equal(l.n, 3);
  NEAR(l.requests[0].due_s, 0);
  NEAR(l.requests[1].due_s, 0.5); /* in order of time, at double rate */
  NEAR(l.requests[2].due_s, 1.5);
  assert_int_equal(l.requests[0].n_in, 1100);
  assert_int_equal(l.requests[0].n_segments, 3);
  assert_int_equal(l.segments[l.requests[0].first_segment + 2].n_tokens, 1100 - 1024);
  assert_int_equal(l.requests[2].n_in, 700);
  assert_true(l.segments[l.requests[0].first_segment].seed == l.segments[l.requests[2].first_segment].seed);
  assert_true(l.segments[l.requests[0].first_segment + 1].seed !=
              l.segments[l.requests[2].first_segment + 1].seed);
  assert_int_equal(l.requests[1].n_in, 5);
  td_load_deinit(&l);
}

static void test_bad_traces(void **state)
{
  static const struct {
    const char *line, *says;
  } bad[] = {
      {"{", "invalid JSON"},
      {"[]", "timestamp"},
      {"{\"timestamp\": 1, \"input_length\": 5}", "output_length"},
      {"{\"timestamp\": 1, \"output_length\": 5}", "input_length"},
      {"{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 1}", "timestamp"},
      {"{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 1}", "input_length"},
      {"{\"timestamp\": 1, \"input_length\": 5.5, \"output_length\": 1}", "input_length"},
      {"{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 99999999999}", "output_length"},
      {"{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1, 2]}", "hash_ids"},
      {"{\"timestamp\": 1, \"input_length\": 999, \"output_length\": 1, \"hash_ids\": [1, \"a\"]}",
       "'hash_ids'[1]"},
      {"{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": 7}", "hash_ids"},
  };
  td_error err;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) { /* by file, line and field */
    char path[] = "/tmp/tandem-trace-XXXXXX", where[64];
    td_load l = {0};
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    assert_non_null(f);
    fprintf(f, "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1}\n\n%s\n", bad[i].line);
    assert_int_equal(fclose(f), 0);
    assert_int_not_equal(td_load_read_trace(&l, path, 1, 0, &err), TD_OK);
    unlink(path);
    snprintf(where, sizeof where, "%s:3: ", path);
    assert_ptr_equal(strstr(err.message, where), err.message);
    assert_non_null(strstr(err.message, bad[i].says));
    td_load_deinit(&l);
  }
  td_load l = {0};
  assert_int_equal(td_load_read_trace(&l, "/nowhere/trace.jsonl", 1, 0, &err), TD_ERR_IO);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random),          cmocka_unit_test(test_many_draws),
      cmocka_unit_test(test_arxiv),           cmocka_unit_test(test_lengths),
      cmocka_unit_test(test_shared_prefixes), cmocka_unit_test(test_presets),
      cmocka_unit_test(test_arrivals),        cmocka_unit_test(test_prompts),
      cmocka_unit_test(test_trace),           cmocka_unit_test(test_bad_traces),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
