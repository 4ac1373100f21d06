/* The budget of a step: chunks under the SLO, the floor, tiles, lengths by need, the correction. */
#include "test_scheduler_fixture.h"

#include <math.h>

#include "scheduler/budget.h"

static const td_sched_config h200 = {.n_slots = 1024,
                                     .max_running = 256,
                                     .step_tokens = 2048,
                                     .page_tokens = 16,
                                     .n_pages = 50000,
                                     .max_context_tokens = 131072,
                                     .cost = &td_cost_h200_llama3_8b};

static td_budget make(const td_sched_config *config, uint64_t slo_us)
{
  td_budget b;
  td_error err;
  td_sched_config c = *config;
  c.tbt_slo_us = slo_us;
  assert_int_equal(td_budget_init(&b, &c, &err), TD_OK);
  return b;
}

/* n_prompts 0: as if need did not count. */
static void begin_for(td_budget *b, uint32_t n_decodes, uint32_t kv_len, uint32_t n_prompts)
{
  td_budget_begin(b);
  td_budget_add_decodes(b, n_decodes, (uint64_t)n_decodes * kv_len);
  td_budget_end_decodes(b, (td_budget_prompts){n_prompts, 0});
}

static void begin(td_budget *b, uint32_t n_decodes, uint32_t kv_len) { begin_for(b, n_decodes, kv_len, 0); }

static double with_us(const td_budget *b, uint32_t n_computed, uint32_t q_len, uint32_t n_rest)
{
  td_budget copy = *b;
  td_budget_add_chunk(&copy, q_len, n_computed + q_len, q_len == n_rest);
  return td_budget_predict_us(&copy, &copy.work);
}

static uint32_t next_random(uint32_t *state, uint32_t n)
{
  *state = *state * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)(*state >> 8) * n) >> 24);
}

/* For any step, the SLO is kept. One token more would break it, or there are no more, or a tile ends there.
 */
static void the_largest_that_keeps_the_slo(void **state)
{
  (void)state;
  uint32_t seed = 7, n_by_time = 0, n_cut = 0;
  for (uint32_t i = 0; i < 20000; i++) {
    td_budget b = make(&h200, 8000 + next_random(&seed, 60000));
    begin(&b, 1 + next_random(&seed, 255), 16 + next_random(&seed, 3000));
    if (next_random(&seed, 2))
      td_budget_add_chunk(&b, 1 + next_random(&seed, 64), 64 + next_random(&seed, 30000), false);
    uint32_t n_computed = 16 * next_random(&seed, 4000), rest = 1 + next_random(&seed, 30000);
    uint32_t left = 2048 - b.work.n_tokens, most = rest < left ? rest : left;
    bool first = b.work.n_rows == b.work.n_decode_rows;
    uint32_t q = td_budget_chunk(&b, n_computed, rest);
    assert_true(q <= most);
    if (q == 0) {
      assert_false(first);
      assert_true(with_us(&b, n_computed, 1, rest) > b.limit_us);
      continue;
    }
    assert_true(with_us(&b, n_computed, q, rest) <= b.limit_us || (first && q <= 16));
    if (q == most)
      continue;
    if (with_us(&b, n_computed, q + 1, rest) > b.limit_us) {
      n_by_time++;
      continue;
    }
    /* cut back: to a point of the table at which a token costs less */
    uint32_t total = b.work.n_tokens + q, point = 0;
    while (point < b.cost.n_points && b.cost.tokens[point] != total)
      point++;
    assert_true(point < b.cost.n_points);
    n_cut++;
  }
  assert_true(n_by_time > 2000 && n_cut > 500);
}

/* 384 tokens cost almost as much as 512, and 513 to 767 cost more per token than either, so nothing ends
 * there. */
static void steps_end_where_tiles_do(void **state)
{
  (void)state;
  static const td_cost_model stair = {.n_points = 6,
                                      .tokens = {1, 256, 257, 512, 513, 768},
                                      .tokens_us = {4000, 6000, 11000, 11000, 16500, 16500}};
  td_sched_config c = h200;
  c.cost = &stair;
  td_budget b = make(&c, 11000); /* up to 512 tokens */
  begin(&b, 56, 1024);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 512 - 56);
  assert_int_equal(td_budget_chunk(&b, 0, 100),
                   100);             /* the end of a prompt is not cut back; the next one fills the tile */
  td_budget roomy = make(&c, 17000); /* 536 tokens fit, beyond the edge of 512 */
  begin(&roomy, 56, 1024);
  assert_int_equal(td_budget_chunk(&roomy, 0, 480), 480);
  begin_for(&b, 56, 1024, 1000); /* also by need, a step that takes exactly the SLO keeps it */
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 512 - 56);
  b = make(&c, 16499); /* 513 would not fit, 512 do */
  begin(&b, 56, 1024);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 512 - 56);
  b = make(&c, 10999); /* any step after 256 takes 11000 */
  begin(&b, 56, 1024);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 256 - 56);

  td_cost_model slope =
      stair; /* the cost rises between the points: there is time for 300, where no tile ends */
  slope.tokens[2] = 264, slope.tokens_us[2] = 10000;
  c.cost = &slope;
  b = make(&c, 10145);
  begin(&b, 56, 1024);
  assert_true(td_cost_tokens_us(&slope, 300) < 10145 * 1.001);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 256 - 56);
  begin(&b, 0, 0); /* no decode waits, so the step is filled */
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 2048);
}

/* Tries every length: no longer chunk keeps the SLO, unless it was cut back to a point. */
static void a_table_that_falls(void **state)
{
  (void)state;
  static const td_cost_model falls = {.n_points = 7,
                                      .tokens = {64, 256, 384, 448, 512, 832, 1024},
                                      .tokens_us = {5000, 6700, 9000, 12500, 10700, 25000, 21700},
                                      .decode_us_per_kv_token = 0.03};
  td_sched_config c = h200;
  c.cost = &falls;
  uint32_t n_past_fall = 0;
  for (uint32_t target = 6000; target < 26000; target += 37) {
    td_budget b = make(&c, target);
    begin(&b, 16, 1024);
    uint32_t q = td_budget_chunk(&b, 0, 100000), longest = 0, total = 16 + q, point = 0;
    for (uint32_t n = 1; n <= 2032; n++)
      if (with_us(&b, 0, n, 100000) <= b.limit_us)
        longest = n;
    while (point < falls.n_points && falls.tokens[point] != total)
      point++;
    assert_true(q == longest || (q < longest && point < falls.n_points) || (q == 16 && longest < 16));
    n_past_fall += q > 448 && with_us(&b, 0, 448 - 16, 100000) > b.limit_us;
  }
  assert_true(n_past_fall > 20);
}

static void prompts_never_starve(void **state)
{
  (void)state;
  td_budget b = make(&h200, 20000);
  begin(&b, 256, 8192); /* 70 ms of decodes */
  double alone = td_budget_predict_us(&b, &b.work);
  assert_true(alone > 60000);
  uint32_t q = td_budget_chunk(&b, 0, 10000);
  assert_true(q >= 16 && with_us(&b, 0, q, 10000) <= 1.1 * alone);
  td_budget_add_chunk(&b, q, q, false);
  static const td_cost_model steep = {.n_points = 2, .tokens = {1, 2}, .tokens_us = {1000, 2000}};
  td_sched_config c = h200;
  c.cost = &steep;
  b = make(&c, 20000);
  begin(&b, 50, 10);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 16); /* one page, at any cost */
  assert_int_equal(td_budget_chunk(&b, 0, 9), 9);
  td_budget_add_chunk(&b, 16, 16, false);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 0); /* but only for the first */
}

static void a_step_of_prompts_is_filled(void **state)
{
  (void)state;
  td_budget b = make(&h200, 6000);
  begin(&b, 0, 0);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 2048);
  assert_int_equal(td_budget_chunk(&b, 0, 500), 500);
  td_budget_add_chunk(&b, 500, 500, true);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 1548);
}

static void without_a_model_as_sarathi(void **state)
{
  (void)state;
  td_sched_config c = h200;
  c.cost = NULL;
  for (int policy = TD_POLICY_TANDEM; policy <= TD_POLICY_SARATHI; policy++) {
    c.policy = (td_policy)policy;
    td_budget b = make(&c, 0);
    begin(&b, 256, 8192);
    assert_int_equal(td_budget_chunk(&b, 0, 10000), 2048 - 256);
    td_budget_add_chunk(&b, 1792, 1792, false);
    assert_int_equal(td_budget_chunk(&b, 0, 10000), 0);
    assert_true(td_budget_predict_us(&b, &b.work) == 0);
  }
}

/* The waiting that a prompt token causes, as in budget.h, in a step of that many tokens. */
static double waiting(const td_budget *b, uint32_t n_tokens, uint32_t n_prompts)
{
  td_budget with = *b;
  uint32_t q_len = n_tokens - b->work.n_tokens;
  td_budget_add_chunk(&with, q_len, q_len, 0);
  double us = td_budget_predict_us(&with, &with.work), alone_us = td_budget_predict_us(b, &b->work);
  if (us > b->slo_us)
    return INFINITY;
  return (n_prompts * us + 0.25 * b->work.n_decode_rows * (us - alone_us)) / q_len;
}

/* If few wait, steps are short, so that reading the weights is shared; if more wait, longer, and never with
 * less throughput; if many wait, as long as the SLO allows. Nothing else matters, so no queue makes the
 * length swing. */
static void lengths_follow_the_queue(void **state)
{
  (void)state;
  uint32_t seed = 11, n_short = 0, n_long = 0;
  td_sched_config c = h200;
  c.step_tokens = 4096;
  for (uint32_t i = 0; i < 500; i++) {
    td_budget b = make(&c, 20000 + next_random(&seed, 60000));
    uint32_t n_decodes = 1 + next_random(&seed, 200), kv_len = 16 + next_random(&seed, 1500), before = 0;
    double rate = 0;
    for (uint32_t n_prompts = 1; n_prompts <= 1024; n_prompts *= 2) {
      begin_for(&b, n_decodes, kv_len, n_prompts);
      uint32_t most = b.most_tokens, q_len = most - n_decodes;
      double us = with_us(&b, 0, q_len, q_len + 1);
      assert_true(most >= before && q_len >= 16 && us <= b.slo_us);
      assert_true(q_len / us >= rate * (1 - 1e-9));
      for (uint32_t k = 0; k < c.cost->n_points; k++)
        if (c.cost->tokens[k] >= n_decodes + 16 && c.cost->tokens[k] <= 4096)
          assert_true(waiting(&b, most, n_prompts) <= waiting(&b, c.cost->tokens[k], n_prompts) * (1 + 1e-9));
      n_short += n_prompts == 1 && us < 0.5 * b.slo_us;
      n_long += n_prompts == 1024 && us > 0.9 * b.slo_us;
      before = most;
      rate = q_len / us;
    }
  }
  assert_true(n_short > 280 && n_long > 300);

  td_budget b = make(&c, 50000);
  begin_for(&b, 16, 1024, 1);
  assert_int_equal(b.most_tokens, 768); /* 19 ms, where 16 decodes take 4.2 alone and the SLO allows 50 */
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 752);
  begin_for(&b, 16, 1024, 64);
  assert_true(td_budget_chunk(&b, 0, 10000) > 1900); /* the SLO's */
  begin_for(&b, 0, 0, 1);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 4096); /* no request waits for its next token */
}

/* A chunk attends to its context: a step with as many tokens takes longer, so fewer tokens keep the SLO. */
static void context_counts(void **state)
{
  (void)state;
  td_sched_config c = h200;
  c.step_tokens = 4096;
  td_budget b = make(&c, 50000);
  uint32_t first = 0, most = UINT32_MAX;
  for (uint32_t n_computed = 0; n_computed <= 32768; n_computed += 4096) {
    td_budget_begin(&b);
    td_budget_add_decodes(&b, 8, 8 * 1024);
    td_budget_end_decodes(
        &b, (td_budget_prompts){64, n_computed}); /* so many wait that the SLO determines the length */
    double us = with_us(&b, n_computed, b.most_tokens - 8, b.most_tokens);
    assert_true(b.most_tokens <= most && us <= b.slo_us);
    most = b.most_tokens;
    first = n_computed == 0 ? most : first;
  }
  assert_true(most < first / 2);
}

static void an_slo_below_what_can_be_kept(void **state)
{
  (void)state;
  td_sched_config c = h200;
  double smallest = td_budget_smallest_step_us(h200.cost, &c);
  assert_true(smallest > 4400 && smallest < 4700);
  td_budget b = make(&c, 1000);
  begin_for(&b, 16, 1024, 1);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 16);    /* always one page */
  for (uint32_t slo_us = 3000; slo_us < 6000; slo_us++) { /* also if it leaves room for only a token or two */
    b = make(&c, slo_us);
    begin_for(&b, 16, 1024, 1);
    assert_true(td_budget_chunk(&b, 0, 10000) >= 16);
  }
  b = make(&c, 0); /* no SLO: by need alone */
  begin_for(&b, 16, 1024, 1);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 752);
  begin_for(&b, 16, 1024, 1000);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 2048 - 16);
  c.cost = NULL; /* nothing is known */
  b = make(&c, 50000);
  begin_for(&b, 16, 1024, 1);
  assert_int_equal(td_budget_chunk(&b, 0, 10000), 2048 - 16);
}

/* A CPU's SLO: 3.4 times the time of the decodes, from 24 ms to 100 ms; a GPU's is constant. */
static void an_slo_that_follows_the_decodes(void **state)
{
  (void)state;
  enum { STEP_TOKENS = 256, REST = 4000 };
  td_sched_config c = h200;
  td_error err;
  td_budget b;
  uint32_t n_least = 0, n_times = 0, n_most = 0, longest = STEP_TOKENS;
  td_sched_set_default_slo(&c, true);
  assert_true(c.tbt_slo_us == 50000 && c.adaptive_slo.decode_factor == 0);
  td_sched_set_default_slo(&c, false);
  assert_true(c.tbt_slo_us == 100000);
  c.step_tokens = STEP_TOKENS;
  td_cost_model fast = td_cost_epyc_smollm2;
  for (uint32_t i = 0; i < fast.n_points; i++)
    fast.tokens_us[i] /= 4;
  c.cost = &fast;
  assert_int_equal(td_budget_init(&b, &c, &err), TD_OK);
  for (uint32_t kv_len = 16; kv_len <= 8192; kv_len += kv_len) {
    begin_for(&b, 1, kv_len, 1);
    double alone_us = td_budget_predict_us(&b, &b.work), slo_us = fmin(fmax(3.4 * alone_us, 24000), 100000);
    uint32_t q = td_budget_chunk(&b, 0, REST);
    assert_true(b.limit_us == slo_us);
    assert_true(q <= c.page_tokens || with_us(&b, 0, q, REST) <= slo_us);
    assert_true(slo_us > 24000 || q <= longest); /* the decodes' share of 24 ms grows */
    longest = q;
    n_least += slo_us == 24000;
    n_times += slo_us > 24000 && slo_us < 100000;
    begin_for(&b, 16, kv_len, 1);
    n_most += b.limit_us == 100000;
  }
  assert_true(n_least > 0 && n_times > 0 && n_most > 0);
}

static void policies(void **state)
{
  (void)state;
  td_error err;
  td_budget b;
  td_sched_config c = h200;
  c.policy = TD_POLICY_COUNT;
  assert_int_equal(td_budget_init(&b, &c, &err), TD_ERR_CONFIG);
  c.policy = TD_POLICY_ORCA;
  assert_int_equal(td_budget_init(&b, &c, &err), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "131327"));
  c.max_context_tokens = 2048 - 254;
  assert_int_equal(td_budget_init(&b, &c, &err), TD_ERR_CONFIG);
  c.max_context_tokens = 2048 - 255;
  assert_int_equal(td_budget_init(&b, &c, &err), TD_OK);
  begin(&b, 100, 1000);
  assert_int_equal(td_budget_chunk(&b, 0, 1700), 1700);
  td_budget_add_chunk(&b, 1700, 1700, true);
  assert_int_equal(td_budget_chunk(&b, 0, 300), 0); /* whole or not at all */
  assert_int_equal(td_budget_chunk(&b, 0, 248), 248);
  for (int i = 0; i < TD_POLICY_COUNT; i++)
    assert_non_null(td_policy_names[i]);
  assert_null(td_policy_names[TD_POLICY_COUNT]);
}

/* Follows the median within 1 %, despite outliers, separately for each kind of step, and never beyond 4. */
static void the_correction_is_slow_and_bounded(void **state)
{
  (void)state;
  td_budget b = make(&h200, 30000);
  td_step_work decodes = {
      .n_tokens = 8, .n_rows = 8, .n_logits = 8, .n_decode_rows = 8, .decode_kv_tokens = 8192};
  double predicted = td_cost_step_us(&b.cost, &decodes);
  td_budget_observe(&b, &decodes, 100 * predicted);
  assert_true(fabs(b.correction[0] - (1 + 1.0 / 32)) < 1e-12);
  for (uint32_t i = 0; i < 600; i++)
    td_budget_observe(&b, &decodes, predicted * (i % 5 == 0 ? 50 : i % 5 == 1 ? 0.01 : 1.25));
  assert_true(fabs(b.correction[0] - 1.25) < 0.02);
  assert_true(b.correction[1] == 1);
  for (uint32_t i = 0; i < 1000; i++)
    td_budget_observe(&b, &decodes, 1000 * predicted);
  assert_true(b.correction[0] == 4);
  for (uint32_t i = 0; i < 1000; i++)
    td_budget_observe(&b, &decodes, 1e-3 * predicted);
  assert_true(b.correction[0] == 0.25);
  td_budget_observe(&b, &decodes, NAN);
  td_budget_observe(&b, &decodes, 0);
  assert_true(b.correction[0] == 0.25);

  begin(&b, 64, 1024);
  uint32_t before = td_budget_chunk(&b, 0, 10000);
  td_step_work hybrid = {
      .n_tokens = 520, .n_rows = 9, .n_logits = 8, .n_decode_rows = 8, .prefill_pairs = 1 << 17};
  for (uint32_t i = 0; i < 300; i++)
    td_budget_observe(&b, &hybrid, 1.5 * td_cost_step_us(&b.cost, &hybrid));
  begin(&b, 64, 1024);
  assert_true(td_budget_chunk(&b, 0, 10000) < before * 3 / 4); /* slower than predicted: shorter chunks */
}

/* Factors learned in an earlier run apply from the first step on, and are corrected as fast as any: that run
 * may have had a busy day. */
static void it_begins_where_it_was_learned(void **state)
{
  (void)state;
  td_cost_model learned = *h200.cost;
  td_sched_config c = h200;
  td_step_work decodes = {
      .n_tokens = 8, .n_rows = 8, .n_logits = 8, .n_decode_rows = 8, .decode_kv_tokens = 8192};
  learned.learned[0] = 1.02;
  c.cost = &learned;
  td_budget fresh = make(&h200, 30000), b = make(&c, 30000);
  assert_true(b.correction[0] == 1.02 && b.correction[1] == 1);
  assert_true(td_budget_predict_us(&b, &decodes) == 1.02 * td_budget_predict_us(&fresh, &decodes));
  assert_true(td_budget_calibrated_us(&b, &decodes) == td_budget_predict_us(&fresh, &decodes));
  td_budget_observe(&b, &decodes, 1e9);
  assert_true(fabs(b.correction[0] - 1.02 * (1 + 1.0 / 32)) < 1e-12);
  static const double bounds[][2] = {{0.1, 0.25}, {0.25, 0.25}, {0.3, 0.3}, {3.9, 3.9}, {4.1, 4}};
  for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
    learned.learned[0] = bounds[i][0];
    td_budget bounded = make(&c, 30000);
    assert_true(bounded.correction[0] == bounds[i][1]);
  }
  learned.learned[0] = 1.02;
  learned.learned[1] = 1.5; /* slower than calibrated: shorter chunks */
  td_budget slower = make(&c, 30000);
  begin(&b, 64, 1024);
  begin(&slower, 64, 1024);
  assert_true(td_budget_chunk(&slower, 0, 10000) < td_budget_chunk(&b, 0, 10000) * 3 / 4);
}

/* A new table while it serves: the old one's correction is dropped, and the SLO is unchanged. */
static void a_better_table_takes_its_place(void **state)
{
  (void)state;
  td_cost_model slow = *h200.cost;
  td_step_work decodes = {
      .n_tokens = 8, .n_rows = 8, .n_logits = 8, .n_decode_rows = 8, .decode_kv_tokens = 8192};
  for (uint32_t i = 0; i < slow.n_points; i++)
    slow.tokens_us[i] *= 3;
  td_budget b = make(&h200, 30000), before = b;
  for (int i = 0; i < 50; i++)
    td_budget_observe(&b, &decodes, 1e9);
  assert_true(b.correction[0] > 2);
  td_budget_set_cost(&b, &slow);
  assert_true(b.correction[0] == 1 && b.slo_us == before.slo_us);
  assert_true(td_budget_predict_us(&b, &decodes) == td_cost_step_us(&slow, &decodes));
}

/* In the scheduler: decodes and a long prompt under an SLO, with every step within it, and the prompt makes
 * progress. */
static void steps_keep_the_slo(void **state)
{
  (void)state;
  static const td_cost_model plain = {.n_points = 2, .tokens = {1, 101}, .tokens_us = {1000, 2000}};
  static const td_sched_config config = {.n_slots = FX_SLOTS,
                                         .max_running = 4,
                                         .step_tokens = 512,
                                         .page_tokens = 16,
                                         .n_pages = 200,
                                         .max_context_tokens = 1024,
                                         .cost = &plain,
                                         .tbt_slo_us = 1600};
  static fx f;
  fx_open(&f, &config);
  fx_submit(&f, 0, 5, 100, 1);
  fx_step(&f);
  fx_submit(&f, 1, 300, 5, 2);
  fx_submit(&f, 2, 20, 5, 3);
  for (uint32_t at = 0; at < 300; at += 60) { /* 61 tokens take 1600 us */
    assert_true(fx_plan(&f));
    assert_int_equal(f.plan->n_rows, 2);
    fx_row(&f, 1, 1, 60, at + 60);
    assert_true(td_sched_predict_us(f.s, f.plan) <= 1600);
    fx_commit(&f, 0);
  }
  assert_true(fx_plan(&f));
  assert_int_equal(f.plan->n_rows, 3);
  fx_row(&f, 2, 2, 20, 20);
  fx_commit(&f, 0);
  assert_true(fx_stats(&f).tbt_slo_us == 1600);
  fx_run_dry(&f);
  fx_close(&f);
}

static void open_policy(fx *f, td_policy policy)
{
  td_sched_config config = {.n_slots = FX_SLOTS,
                            .max_running = 4,
                            .step_tokens = 64,
                            .page_tokens = 16,
                            .n_pages = 100,
                            .max_context_tokens = 1024,
                            .policy = policy};
  if (policy == TD_POLICY_ORCA)
    config.step_tokens = 1024 + 3;
  fx_open(f, &config);
  fx_submit(f, 0, 10, 4, 1); /* decodes from the second step on */
  fx_step(f);
  fx_submit(f, 1, 100, 2, 2);
}

static void prefill_first_lets_decodes_wait(void **state)
{
  (void)state;
  static fx f;
  open_policy(&f, TD_POLICY_PREFILL_FIRST);
  for (uint32_t at = 0; at < 100; at += 64) {
    assert_true(fx_plan(&f));
    assert_int_equal(f.plan->n_decode_rows, 0);
    fx_row(&f, 0, 1, at ? 36 : 64, at ? 100 : 64);
    fx_commit(&f, 0);
  }
  assert_true(fx_plan(&f));
  assert_int_equal(f.plan->n_decode_rows, 2);
  fx_commit(&f, 0);
  fx_run_dry(&f);
  fx_close(&f);
}

static void decode_first_lets_prompts_wait(void **state)
{
  (void)state;
  static fx f;
  open_policy(&f, TD_POLICY_DECODE_FIRST);
  for (uint32_t i = 0; i < 3; i++) {
    assert_true(fx_plan(&f));
    assert_int_equal(f.plan->n_rows, 1);
    fx_row(&f, 0, 0, 1, 11 + i);
    fx_commit(&f, 0);
  }
  assert_int_equal(f.n_finished, 1);
  assert_true(fx_plan(&f));
  fx_row(&f, 0, 1, 64, 64);
  fx_commit(&f, 0);
  fx_run_dry(&f);
  fx_close(&f);
}

static void orca_takes_prompts_whole(void **state)
{
  (void)state;
  static fx f;
  open_policy(&f, TD_POLICY_ORCA);
  fx_submit(&f, 2, 950, 2, 3);
  assert_true(fx_plan(&f));
  assert_int_equal(f.plan->n_rows, 2);
  fx_row(&f, 1, 1, 100, 100);
  fx_commit(&f, 0);
  assert_true(fx_plan(&f));
  assert_int_equal(f.plan->n_rows, 3);
  fx_row(&f, 2, 2, 950, 950);
  fx_commit(&f, 0);
  fx_run_dry(&f);
  fx_close(&f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_largest_that_keeps_the_slo),
      cmocka_unit_test(steps_end_where_tiles_do),
      cmocka_unit_test(a_table_that_falls),
      cmocka_unit_test(prompts_never_starve),
      cmocka_unit_test(a_step_of_prompts_is_filled),
      cmocka_unit_test(without_a_model_as_sarathi),
      cmocka_unit_test(lengths_follow_the_queue),
      cmocka_unit_test(context_counts),
      cmocka_unit_test(an_slo_below_what_can_be_kept),
      cmocka_unit_test(an_slo_that_follows_the_decodes),
      cmocka_unit_test(policies),
      cmocka_unit_test(the_correction_is_slow_and_bounded),
      cmocka_unit_test(it_begins_where_it_was_learned),
      cmocka_unit_test(a_better_table_takes_its_place),
      cmocka_unit_test(steps_keep_the_slo),
      cmocka_unit_test(prefill_first_lets_decodes_wait),
      cmocka_unit_test(decode_first_lets_prompts_wait),
      cmocka_unit_test(orca_takes_prompts_whole),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
