/* Fitting a cost model: the model that made the samples is recovered, despite noise and disturbed steps. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/cost_fit.h"
#include "scheduler/cost_text.h"

static uint64_t random_state;

static double uniform(void)
{
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (double)(random_state >> 40) / (1 << 24);
}

static td_step_work hybrid(uint32_t n_decodes, uint32_t context, uint32_t chunk, uint32_t at)
{
  td_step_work w = {.n_tokens = n_decodes + chunk,
                    .n_rows = n_decodes + (chunk > 0),
                    .n_logits = n_decodes + (chunk > 0),
                    .n_decode_rows = n_decodes,
                    .decode_kv_tokens = (uint64_t)n_decodes * context};
  if (chunk > 0) {
    w.prefill_pairs = td_cost_pairs(chunk, at + chunk);
    w.prefill_kv_tokens = at + chunk;
    w.prefill_short_chunk_keys = td_cost_short_chunk_keys(chunk, at + chunk);
  }
  return w;
}

/* Steps as a calibration makes them. */
static uint32_t make_samples(td_cost_sample *s)
{
  static const uint32_t tokens[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048};
  uint32_t n = 0;
  for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
    if (tokens[i] <= 256) {
      s[n++].work = hybrid(tokens[i], 64, 0, 0);
      s[n++].work = hybrid(tokens[i], 2048, 0, 0);
    }
    if (tokens[i] >= 16) {
      s[n++].work = hybrid(0, 0, tokens[i], 0);
      s[n++].work = hybrid(0, 0, tokens[i], 8192);
      s[n++].work = hybrid(tokens[i] / 4, 512, tokens[i] - tokens[i] / 4, 1024);
    }
  }
  return n;
}

/* Steps of other sizes than those that were measured. */
static double worst_elsewhere(const td_cost_model *got, const td_cost_model *want)
{
  double worst = 0;
  for (uint32_t i = 0; i < 2000; i++) {
    td_step_work w = hybrid((uint32_t)(256 * uniform()), 64 + (uint32_t)(4000 * uniform()),
                            1 + (uint32_t)(1700 * uniform()), (uint32_t)(16000 * uniform()));
    worst = fmax(worst, fabs(td_cost_step_us(got, &w) / td_cost_step_us(want, &w) - 1));
  }
  return worst;
}

static const td_cost_model truth = {
    .n_points = 13,
    .tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048},
    .tokens_us = {4099, 4148, 4155, 4200, 4201, 4451, 4973, 5305, 6809, 9900, 11340, 23250, 45640},
    .logits_us_per_row = 1.5,
    .decode_us_per_row = 3,
    .decode_us_per_kv_token = 0.0305,
    .prefill_us_per_chunk = 150,
    .prefill_us_per_pair = 9.36e-4,
    .prefill_us_per_short_chunk_key = 0.4,
    .hybrid_us = 400,
    .hybrid_us_per_decode_row = 13,
    .hybrid_beside = 0.36}; /* an H200's value, with which a fit begins */

static void finds_what_made_the_samples(void **state)
{
  (void)state;
  static td_cost_sample s[TD_COST_SAMPLES_MAX];
  td_cost_model m;
  td_error err;
  random_state = 1;
  uint32_t n = make_samples(s);
  for (uint32_t i = 0; i < n; i++)
    s[i].us = td_cost_step_us(&truth, &s[i].work);
  assert_int_equal(td_cost_fit(s, n, true, &m, &err), TD_OK);
  assert_true(td_cost_is_valid(&m));
  assert_true(td_cost_fit_error(&m, s, n, 1) < 0.001);
  assert_true(worst_elsewhere(&m, &truth) < 0.01);
  assert_true(fabs(m.decode_us_per_kv_token / truth.decode_us_per_kv_token - 1) < 0.01);
  assert_true(fabs(m.prefill_us_per_pair / truth.prefill_us_per_pair - 1) < 0.05);
  assert_true(fabs(m.prefill_us_per_short_chunk_key / truth.prefill_us_per_short_chunk_key - 1) < 0.05);
  assert_true(fabs(m.hybrid_us_per_decode_row / truth.hybrid_us_per_decode_row - 1) < 0.05);
}

/* The table has room for the smallest and the largest token counts; counts between the last two points are
 * shared between both. */
static void more_sizes_than_points(void **state)
{
  (void)state;
  static td_cost_sample s[TD_COST_SAMPLES_MAX];
  td_cost_model m, of = truth;
  td_error err;
  uint32_t n = 0;
  of.n_points = TD_COST_POINTS_MAX;
  for (uint32_t i = 0; i < TD_COST_POINTS_MAX; i++) {
    of.tokens[i] = i + 1 < TD_COST_POINTS_MAX ? 8 * (i + 1) : 4096;
    of.tokens_us[i] = i + 1 < TD_COST_POINTS_MAX ? 4000 + i : 90000;
  }
  for (uint32_t i = 0; i < TD_COST_POINTS_MAX + 3; i++) {
    uint32_t tokens = i < TD_COST_POINTS_MAX ? of.tokens[i] : 1000 * (i - TD_COST_POINTS_MAX + 1);
    s[n++].work = hybrid(0, 0, tokens, 0);
    s[n++].work = i % 3 == 0   ? hybrid(tokens < 256 ? tokens : 256, 64 + 100 * i, 0, 0)
                  : i % 3 == 1 ? hybrid(0, 0, tokens, 8192)
                               : hybrid(tokens / 4, 512, tokens - tokens / 4, 1024);
  }
  assert_true(n <= TD_COST_SAMPLES_MAX);
  for (uint32_t i = 0; i < n; i++)
    s[i].us = td_cost_step_us(&of, &s[i].work);
  assert_int_equal(td_cost_fit(s, n, true, &m, &err), TD_OK);
  assert_int_equal(m.n_points, TD_COST_POINTS_MAX);
  assert_true(td_cost_fit_error(&m, s, n, 1) < 0.01);
}

/* Beside chunks KV costs more if both wait for memory, and less if it is read while they compute. */
static void kv_beside_chunks_has_a_price_of_its_own(void **state)
{
  (void)state;
  static td_cost_sample s[TD_COST_SAMPLES_MAX];
  td_cost_model m, of = truth;
  td_error err;
  const double prices[] = {0.0305, 0.045, 0.011, 1e-9};
  for (size_t k = 0; k < sizeof prices / sizeof *prices; k++) {
    of.hybrid_us_per_kv_token = prices[k];
    random_state = 1;
    uint32_t n = make_samples(s);
    for (uint32_t rows = 8; rows <= 128; rows *= 4)
      for (uint32_t all = 512; all <= 2048; all *= 2)
        s[n++].work = hybrid(rows, 7000, all - rows, 8192);
    for (uint32_t i = 0; i < n; i++)
      s[i].us = td_cost_step_us(&of, &s[i].work);
    assert_int_equal(td_cost_fit(s, n, true, &m, &err), TD_OK);
    assert_true(td_cost_is_valid(&m) &&
                m.hybrid_us_per_kv_token > 0); /* 0 would be the price without chunks */
    assert_true(fabs(m.hybrid_us_per_kv_token - prices[k]) < 0.01 * truth.decode_us_per_kv_token);
    assert_true(fabs(m.decode_us_per_kv_token / truth.decode_us_per_kv_token - 1) < 0.01);
    assert_true(worst_elsewhere(&m, &of) < 0.01);
  }
}

/* With only one length of context, the rows may as well be what costs more. */
static void one_context_tells_no_price(void **state)
{
  (void)state;
  static td_cost_sample s[TD_COST_SAMPLES_MAX];
  td_cost_model m;
  td_error err;
  random_state = 1;
  uint32_t n = make_samples(s);
  for (uint32_t i = 0; i < n; i++)
    s[i].us = td_cost_step_us(&truth, &s[i].work);
  assert_int_equal(td_cost_fit(s, n, true, &m, &err), TD_OK);
  assert_true(m.hybrid_us_per_kv_token == 0);
}

/* 3 % of noise, and every tenth step took up to five times as long, because something else ran. */
static void noise_and_disturbed_steps(void **state)
{
  (void)state;
  static td_cost_sample s[TD_COST_SAMPLES_MAX];
  td_cost_model m;
  td_error err;
  for (random_state = 1; random_state < 40; random_state++) {
    uint64_t seed = random_state;
    uint32_t n = make_samples(s);
    for (uint32_t i = 0; i < n; i++) {
      s[i].us = td_cost_step_us(&truth, &s[i].work) * (1 + 0.06 * (uniform() - 0.5));
      if (i % 10 == 7)
        s[i].us *= 1 + 4 * uniform();
    }
    assert_int_equal(td_cost_fit(s, n, true, &m, &err), TD_OK);
    assert_true(td_cost_is_valid(&m));
    assert_true(td_cost_fit_error(&m, s, n, 0.5) < 0.02);
    assert_true(worst_elsewhere(&m, &truth) < 0.15);
    random_state = seed;
  }
}

/* The share of attention of chunks and decodes that runs concurrently, despite 3 % of noise. For a backend
 * that runs one after the other the share is zero, whatever the noise. */
static void finds_what_runs_beside(void **state)
{
  (void)state;
  static td_cost_sample s[TD_COST_SAMPLES_MAX];
  td_cost_model beside = truth, m;
  td_error err;
  beside.hybrid_beside = 0.6;
  beside.hybrid_us = beside.hybrid_us_per_decode_row = 0;
  for (random_state = 1; random_state < 20; random_state++) {
    uint64_t seed = random_state;
    uint32_t n = make_samples(s);
    s[n++].work = hybrid(64, 4096, 448, 16384); /* both long, as in calibrations */
    for (uint32_t i = 0; i < n; i++)
      s[i].us = td_cost_step_us(&beside, &s[i].work);
    assert_int_equal(td_cost_fit(s, n, true, &m, &err), TD_OK);
    assert_true(fabs(m.hybrid_beside - beside.hybrid_beside) < 0.15);
    assert_true(worst_elsewhere(&m, &beside) < 0.06);
    for (uint32_t i = 0; i < n; i++)
      s[i].us *= 1 + 0.06 * (uniform() - 0.5);
    assert_int_equal(td_cost_fit(s, n, true, &m, &err), TD_OK);
    assert_true(td_cost_is_valid(&m) && worst_elsewhere(&m, &beside) < 0.15);
    assert_int_equal(td_cost_fit(s, n, false, &m, &err), TD_OK);
    assert_true(m.hybrid_beside == 0);
    random_state = seed;
  }
}

/* 512 tokens may take less than 448: another algorithm. */
static void a_table_may_fall(void **state)
{
  (void)state;
  td_cost_sample s[4] = {{.work = hybrid(0, 0, 8, 0), .us = 100},
                         {.work = hybrid(0, 0, 16, 0), .us = 80},
                         {.work = hybrid(0, 0, 32, 0), .us = 90},
                         {.work = hybrid(0, 0, 64, 0), .us = 200}};
  td_cost_model m;
  td_error err;
  assert_int_equal(td_cost_fit(s, 4, true, &m, &err), TD_OK);
  assert_true(td_cost_is_valid(&m));
  assert_true(td_cost_fit_error(&m, s, 4, 1) < 0.01);
  assert_true(td_cost_step_us(&m, &s[1].work) < td_cost_step_us(&m, &s[0].work));
}

static void stairs(void **state)
{
  (void)state;
  td_cost_model m = {.n_points = 4, .tokens = {64, 256, 384, 448}, .tokens_us = {50, 67, 110, 160}},
                full = {.n_points = TD_COST_POINTS_MAX - 1};
  td_cost_make_stairs(&m, 256);
  assert_true(td_cost_is_valid(&m));
  assert_int_equal(m.n_points, 6);
  assert_true(td_cost_tokens_us(&m, 160) == 58.5); /* as before */
  assert_true(td_cost_tokens_us(&m, 256) == 67 && td_cost_tokens_us(&m, 257) == 110 &&
              td_cost_tokens_us(&m, 300) == 110);
  assert_true(td_cost_tokens_us(&m, 384) == 110 && td_cost_tokens_us(&m, 385) == 160 &&
              td_cost_tokens_us(&m, 448) == 160);
  td_cost_model again = m;
  td_cost_make_stairs(&again, 256);
  assert_memory_equal(&again, &m, sizeof m);
  for (uint32_t i = 0; i < full.n_points; i++)
    full.tokens[i] = 10 + 10 * i, full.tokens_us[i] = 10 + i;
  td_cost_make_stairs(&full, 10); /* room for one */
  assert_true(td_cost_is_valid(&full) && full.n_points == TD_COST_POINTS_MAX && full.tokens[1] == 11 &&
              full.tokens[2] == 20);
}

static void what_cannot_be_fitted(void **state)
{
  (void)state;
  static td_cost_sample many[TD_COST_SAMPLES_MAX + 1];
  td_cost_sample one = {.work = hybrid(3, 100, 0, 0), .us = 50}, bad = one;
  td_cost_model m;
  td_error err;
  assert_int_equal(td_cost_fit(&one, 1, true, &m, &err), TD_OK);
  assert_true(fabs(td_cost_step_us(&m, &one.work) - 50) < 0.1);
  assert_int_equal(td_cost_fit(&one, 0, true, &m, &err), TD_ERR_CONFIG);
  bad.us = 0;
  assert_int_equal(td_cost_fit(&bad, 1, true, &m, &err), TD_ERR_CONFIG);
  bad.us = NAN;
  assert_int_equal(td_cost_fit(&bad, 1, true, &m, &err), TD_ERR_CONFIG);
  bad = one;
  bad.work.n_tokens = 0;
  assert_int_equal(td_cost_fit(&bad, 1, true, &m, &err), TD_ERR_CONFIG);
  for (uint32_t i = 0; i <= TD_COST_SAMPLES_MAX; i++)
    many[i] = (td_cost_sample){.work = hybrid(0, 0, i + 1, 0), .us = 1000 + i};
  assert_int_equal(td_cost_fit(many, TD_COST_SAMPLES_MAX + 1, true, &m, &err), TD_ERR_CONFIG);
  assert_int_equal(td_cost_fit(many, TD_COST_SAMPLES_MAX, true, &m, &err),
                   TD_OK); /* more than a table has points */
  assert_true(td_cost_is_valid(&m) && m.n_points == TD_COST_POINTS_MAX &&
              m.tokens[m.n_points - 1] == TD_COST_SAMPLES_MAX);
  assert_true(td_cost_fit_error(&m, many, TD_COST_SAMPLES_MAX, 1) < 0.05);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(finds_what_made_the_samples),
      cmocka_unit_test(more_sizes_than_points),
      cmocka_unit_test(kv_beside_chunks_has_a_price_of_its_own),
      cmocka_unit_test(one_context_tells_no_price),
      cmocka_unit_test(noise_and_disturbed_steps),
      cmocka_unit_test(finds_what_runs_beside),
      cmocka_unit_test(a_table_may_fall),
      cmocka_unit_test(stairs),
      cmocka_unit_test(what_cannot_be_fitted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
