/* Pipelines whose times can be worked out by hand, and SARATHI's experiments on A100s. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

#include <cmocka.h>

#include "capacity/gpt3.h"
#include "scheduler/budget.h"

#define NEAR(a, b, tolerance) assert_true(fabs((double)(a) - (double)(b)) <= (tolerance)*fabs((double)(b)))

static const td_cost_model constant = {.n_points = 1, .tokens = {1}, .tokens_us = {1000}};

static td_pipeline_config make_config(const td_cost_model *stage, uint32_t n_stages, uint32_t n_lanes)
{
  return (td_pipeline_config){.n_pipelines = 1,
                              .n_stages = n_stages,
                              .n_lanes = n_lanes,
                              .stage = stage,
                              .sched = {.n_slots = 1,
                                        .max_running = 1,
                                        .step_tokens = 64,
                                        .page_tokens = 16,
                                        .n_pages = 16,
                                        .max_context_tokens = 128,
                                        .policy = TD_POLICY_SARATHI}};
}

static td_load make_load(size_t n, uint32_t n_in, uint32_t n_out)
{
  td_load l = {0};
  for (size_t i = 0; i < n; i++) {
    td_load_begin(&l, 0, n_out);
    td_load_segment_add(&l, i + 1, n_in);
  }
  return l;
}

static td_pipeline_result run(const td_load *l, const td_pipeline_config *c, double *done_s)
{
  td_pipeline_result r;
  td_error err;
  assert_int_equal(td_pipeline_run(l, c, &r, done_s, &err), TD_OK);
  assert_int_equal(r.n_done, l->n);
  return r;
}

/* Two stages and two micro-batches of equal steps: both stages always work. Four steps each:
 *   stage 0  A B A B A B A B        (ms 0..8)
 *   stage 1    A B A B A B A B      (ms 1..9) */
static void test_balanced(void **state)
{
  double done_s[2];
  td_load l = make_load(2, 8, 4);
  td_pipeline_config c = make_config(&constant, 2, 2);
  td_pipeline_result r = run(&l, &c, done_s);
  NEAR(done_s[0], 0.008, 1e-12);
  NEAR(r.seconds, 0.009, 1e-12);
  assert_true(r.bubble_share == 0 && r.bubble_ms.max == 0);
  assert_int_equal(r.n_steps, 8);
  td_load_deinit(&l);
}

/* One micro-batch in two stages: each waits a millisecond for each step but the first. Stage 1 first works at
 * 1 ms. */
static void test_alone(void **state)
{
  td_load l = make_load(1, 8, 4);
  td_pipeline_config c = make_config(&constant, 2, 1);
  td_pipeline_result r = run(&l, &c, NULL);
  NEAR(r.seconds, 0.008, 1e-12);
  NEAR(r.bubble_ms.p50, 3, 1e-12); /* the same in both stages */
  NEAR(r.bubble_share, 6.0 / (6 + 8), 1e-12);
  c.send_us = 500; /* to the next stage; tokens go back at once */
  r = run(&l, &c, NULL);
  NEAR(r.seconds, 0.010, 1e-12);
  td_load_deinit(&l);
}

/* A step takes a ms a token. A's prompt of 9 beside B's of 1, two tokens each, two stages:
 *   stage 0  AAAAAAAAA B ........ A          A 0-9, B 9-10, A's second at 18, B's second at 19
 *   stage 1           AAAAAAAAA B A .        A 9-18, B 18-19, A 19-20, B 20-21 */
static void test_uneven(void **state)
{
  static const td_cost_model per_token = {.n_points = 2, .tokens = {1, 101}, .tokens_us = {1000, 101000}};
  td_load l = {0};
  double done_s[2];
  td_load_begin(&l, 0, 2);
  td_load_segment_add(&l, 1, 9);
  td_load_begin(&l, 0, 2);
  td_load_segment_add(&l, 2, 1);
  td_pipeline_config c = make_config(&per_token, 2, 2);
  td_pipeline_result r = run(&l, &c, done_s);
  NEAR(done_s[0], 0.020, 1e-12);
  NEAR(done_s[1], 0.021, 1e-12);
  NEAR(r.bubble_ms.max, 8.0 / 2, 1e-12); /* stage 0 waits from 10 to 18 for A's second step */
  td_load_deinit(&l);
}

/* Plans of a lane say whose they are. */
static void test_micro_batch(void **state)
{
  td_sched *s;
  td_plan *plan;
  td_sched_config c = make_config(&constant, 1, 1).sched;
  c.micro_batch = 5;
  assert_int_equal(td_sched_create(&c, &s, NULL), TD_OK);
  assert_int_equal(td_sched_plan_create(s, &plan, NULL), TD_OK);
  int32_t tokens[4] = {1, 2, 3};
  assert_int_equal(
      td_sched_submit(s, 0, &(td_sched_request){.tokens = tokens, .n_prompt = 3, .max_new = 1}, 0, NULL),
      TD_OK);
  assert_true(td_sched_plan(s, 0, plan));
  assert_int_equal(plan->micro_batch, 5);
  td_plan_destroy(plan);
  td_sched_destroy(s);
}

/* SARATHI's table 4, LLaMA-33B on one A100, 1K tokens, batch 10, prompt:answer 28, chunk 256: 1.25 times the
 * throughput of prompts and decodes in steps of their own. The A100's efficiencies in gpt3.c stand on this.
 */
static void test_a100(void **state)
{
  enum { WIDTH = 6656, LAYERS = 60, BATCH = 10, PROMPT = 988, DECODE = 35 };
  td_cost_model m = td_a100_layers(WIDTH, LAYERS, 1, 512);
  td_step_work prompts = {.n_tokens = BATCH * PROMPT,
                          .n_rows = BATCH,
                          .n_logits = BATCH,
                          .prefill_pairs = BATCH * td_cost_pairs(PROMPT, PROMPT),
                          .prefill_kv_tokens = BATCH * PROMPT};
  td_step_work decodes = {.n_tokens = BATCH,
                          .n_rows = BATCH,
                          .n_logits = BATCH,
                          .n_decode_rows = BATCH,
                          .decode_kv_tokens = BATCH * (PROMPT + DECODE / 2)};
  double apart_us = (td_cost_step_us(&m, &prompts) + DECODE * td_cost_step_us(&m, &decodes)) / BATCH;
  double together_us = td_sarathi_request_us(&m, 256, 128, BATCH, PROMPT, DECODE);
  print_message("LLaMA-33B on an A100: %.3f times the throughput (table 4: 1.25)\n", apart_us / together_us);
  NEAR(apart_us / together_us, 1.25, 0.05);
  m = td_a100_layers(12288, 12, 1, 256);
  NEAR(td_cost_tokens_us(&m, 512) / td_cost_tokens_us(&m, 256), 2, 1e-9);    /* past the peak */
  NEAR(td_cost_tokens_us(&m, 256) / td_cost_tokens_us(&m, 128), 1.75, 1e-9); /* before it */
  NEAR(td_cost_tokens_us(&m, 257) / td_cost_tokens_us(&m, 256), 1.5, 1e-9);  /* a tile more */
}

/* Lengths: bounds, ratio, and the mean of the Zipf law, (1 - theta) / (2 - theta) of the way for many ranks.
 */
static void test_gpt3_load(void **state)
{
  td_load l = {0};
  double sum = 0, in = 0, out = 0;
  td_gpt3_load(&l, 20000, 1024, 4096, 0.4, 10, 1);
  for (size_t i = 0; i < l.n; i++) {
    uint32_t total = l.requests[i].n_in + l.requests[i].n_out;
    assert_true(total >= 1024 && total <= 4096);
    sum += total;
    in += l.requests[i].n_in;
    out += l.requests[i].n_out;
  }
  NEAR(in / out, 10, 0.01);
  NEAR(sum / (double)l.n, 1024 + 3072 * 0.6 / 1.6, 0.01);
  td_load_deinit(&l);
}

/* The experiment in small: chunks even out micro-batches, and that is worth more than a third of the time. */
static void test_gpt3(void **state)
{
  td_load l = {0};
  td_pipeline_result r[TD_GPT3_SCENES];
  td_gpt3_load(&l, 600, 1024, 4096, 0.4, 10, 1);
  for (int i = 0; i < TD_GPT3_SCENES; i++) {
    td_cost_model stage;
    td_pipeline_config c = td_gpt3_config((td_gpt3_scene)i, &td_gpt3_guessed, &stage);
    r[i] = run(&l, &c, NULL);
  }
  const td_pipeline_result *orca = &r[TD_GPT3_ORCA_PIPELINE], *sarathi = &r[TD_GPT3_SARATHI_PIPELINE];
  assert_true(orca->bubble_ms.p50 > 6 * sarathi->bubble_ms.p50);
  assert_true(orca->seconds > 1.5 * sarathi->seconds);
  assert_true(r[TD_GPT3_ORCA_REPLICAS].seconds > sarathi->seconds &&
              r[TD_GPT3_ORCA_REPLICAS].seconds < orca->seconds);
  assert_true(r[TD_GPT3_ORCA_REPLICAS].bubble_share == 0);
  assert_true(r[TD_GPT3_TANDEM_PIPELINE].seconds < sarathi->seconds);
  td_load_deinit(&l);
}

/* What the paper does not give: each moves the figures to its side. */
static void test_gpt3_guesses(void **state)
{
  td_load l = {0};
  td_gpt3_guesses g[4] = {td_gpt3_guessed, td_gpt3_guessed, td_gpt3_guessed, td_gpt3_guessed};
  td_pipeline_result orca[4], sarathi[4];
  g[1].stage_us = 10e3; /* slow decodes are nearer to prompts */
  g[2].scatter = 0.1;   /* equal work is not equal time */
  g[3].padded = true;
  td_gpt3_load(&l, 600, 1024, 4096, 0.4, 10, 1);
  for (int i = 0; i < 4; i++) {
    td_cost_model stage;
    td_pipeline_config c = td_gpt3_config(TD_GPT3_ORCA_PIPELINE, &g[i], &stage);
    orca[i] = run(&l, &c, NULL);
    c = td_gpt3_config(TD_GPT3_SARATHI_PIPELINE, &g[i], &stage);
    sarathi[i] = run(&l, &c, NULL);
  }
  assert_true(orca[1].seconds / sarathi[1].seconds < 0.8 * orca[0].seconds / sarathi[0].seconds);
  assert_true(sarathi[2].bubble_ms.p50 > 1.5 * sarathi[0].bubble_ms.p50);
  NEAR(orca[2].mean_stage_ms, orca[0].mean_stage_ms, 0.02);
  assert_true(orca[3].seconds > orca[0].seconds && sarathi[3].seconds > sarathi[0].seconds);
  td_load_deinit(&l);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_balanced),    cmocka_unit_test(test_alone), cmocka_unit_test(test_uneven),
      cmocka_unit_test(test_micro_batch), cmocka_unit_test(test_a100),  cmocka_unit_test(test_gpt3_load),
      cmocka_unit_test(test_gpt3),        cmocka_unit_test(test_gpt3_guesses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
