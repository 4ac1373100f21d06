/* Step times, guessed and learned (scheduler/cost_guess.c, cost_learn.c): a guess scales as a device does,
 * and a few steps make predictions right, also for kinds of steps not seen yet. By counts, without a clock.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "scheduler/cost_guess.h"
#include "scheduler/cost_learn.h"
#include "scheduler/cost_text.h"

/* Another device: five times slower for few tokens, twice for many, attention three times. */
static const td_cost_model truth = {.n_points = 5,
                                    .tokens = {1, 8, 32, 128, 512},
                                    .tokens_us = {60000, 90000, 200000, 700000, 2700000},
                                    .logits_us_per_row = 900,
                                    .decode_us_per_kv_token = 15,
                                    .prefill_us_per_pair = 1.5};

static uint32_t random_state;
static uint32_t draw(uint32_t n)
{
  random_state = random_state * 1664525 + 1013904223;
  return (random_state >> 8) % n;
}

static td_step_work work(uint32_t n_decodes, uint32_t context, uint32_t chunk, uint32_t behind)
{
  uint32_t n_rows = n_decodes + (chunk > 0);
  return (td_step_work){.n_tokens = n_decodes + chunk,
                        .n_rows = n_rows,
                        .n_logits = n_rows,
                        .n_decode_rows = n_decodes,
                        .decode_kv_tokens = (uint64_t)n_decodes * context,
                        .prefill_pairs = td_cost_pairs(chunk, chunk + behind),
                        .prefill_kv_tokens = chunk > 0 ? chunk + behind : 0,
                        .prefill_short_chunk_keys =
                            chunk > 0 ? td_cost_short_chunk_keys(chunk, chunk + behind) : 0};
}

/* As serving makes them: mostly decodes, a chunk now and then. */
static td_step_work any_work(void)
{
  bool has_chunk = draw(3) == 0;
  uint32_t n_decodes =
      draw(16) +
      !has_chunk; /* one draw per statement, because the evaluation order of arguments is unspecified */
  uint32_t behind = draw(2) ? draw(2000) : 0;
  uint32_t chunk = has_chunk ? 2 + draw(110) : 0;
  uint32_t context = 50 + draw(1000);
  return work(n_decodes, context, chunk, behind);
}

/* Steps vary by a tenth; one in ten is disturbed. */
static double time_of(const td_step_work *w)
{
  double us = td_cost_step_us(&truth, w) * (0.9 + 0.2 * draw(1000) / 1000);
  return draw(10) == 0 ? 4 * us : us;
}

/* The largest error over steps of all sizes, as a factor. */
static double worst(const td_cost_model *m, uint32_t chunk_step)
{
  double most = 1;
  for (uint32_t n = 0; n <= 16; n += 4)
    for (uint32_t chunk = n == 0 ? chunk_step : 0; chunk <= 112; chunk += chunk_step) {
      td_step_work w = work(n, 500, chunk, 300);
      double times = td_cost_step_us(m, &w) / td_cost_step_us(&truth, &w);
      most = fmax(most, fmax(times, 1 / times));
    }
  return most;
}

static void predictions_converge(void **state)
{
  double after_16 = 1, after_64 = 1, after_400 = 1;
  for (uint32_t seed = 1; seed <= 50; seed++) {
    td_cost_learner l;
    random_state = seed;
    td_cost_learner_init(&l, &td_cost_epyc_smollm2, TD_COST_UNCERTAINTY_GUESSED);
    for (uint32_t i = 1; i <= 400; i++) {
      td_step_work w = any_work();
      td_cost_learner_observe(&l, &w, time_of(&w));
      td_cost_model m = td_cost_learner_model(&l);
      assert_true(td_cost_is_valid(&m));
      if (i == 16)
        after_16 = fmax(after_16, worst(&m, 16));
      else if (i == 64)
        after_64 = fmax(after_64, worst(&m, 16));
      else if (i == 400)
        after_400 = fmax(after_400, worst(&m, 16));
    }
  }
  print_message(
      "worst error of all steps of 50 runs: %.2f times at first, %.2f after 16 steps, %.2f after 64, "
      "%.2f after 400\n",
      worst(&td_cost_epyc_smollm2, 16), after_16, after_64, after_400);
  assert_true(worst(&td_cost_epyc_smollm2, 16) > 3 && after_16 < 1.7 && after_64 < 1.5 && after_400 < 1.3);
}

/* The cost of KV beside chunks is learned separately, from lengths that vary as in served steps. */
static void kv_beside_chunks_has_a_price_of_its_own(void **state)
{
  for (double times = 0.4; times < 3; times *= 6) {
    td_cost_model of = td_cost_epyc_smollm2;
    td_cost_learner l;
    of.hybrid_us_per_kv_token = times * of.decode_us_per_kv_token;
    random_state = 3;
    td_cost_learner_init(&l, &td_cost_epyc_smollm2, TD_COST_UNCERTAINTY_GUESSED);
    for (uint32_t i = 0; i < 1000; i++) {
      td_step_work w = work(1 + draw(16), 50 + draw(4000), draw(3) ? 0 : 2 + draw(110), draw(500));
      td_cost_learner_observe(&l, &w, td_cost_step_us(&of, &w) * (0.95 + 0.1 * draw(1000) / 1000));
    }
    td_cost_model m = td_cost_learner_model(&l);
    td_step_work alone = work(12, 3000, 0, 0), beside = work(12, 3000, 40, 100);
    double alone_off = td_cost_step_us(&m, &alone) / td_cost_step_us(&of, &alone),
           beside_off = td_cost_step_us(&m, &beside) / td_cost_step_us(&of, &beside);
    print_message("%.1f times: steps of decodes at %.3f of their time, hybrids at %.3f\n", times, alone_off,
                  beside_off);
    assert_true(fabs(alone_off - 1) < 0.03 && fabs(beside_off - 1) < 0.03);
  }
}

/* Attention takes half as long again as in the table; a step of both kinds hides the same amount as before.
 */
static void attention_beside_is_learned(void **state)
{
  td_cost_model slow = td_cost_h200_llama3_8b;
  td_cost_learner l;
  double most = 1;
  random_state = 1;
  slow.decode_us_per_kv_token *= 1.5;
  slow.prefill_us_per_pair *= 1.5;
  td_cost_learner_init(&l, &td_cost_h200_llama3_8b, TD_COST_UNCERTAINTY_GUESSED);
  for (uint32_t i = 0; i < 400; i++) {
    uint32_t n_decodes = draw(3) ? 64 : 0, chunk = n_decodes == 0 || draw(2) ? 448 : 0;
    td_step_work w = work(n_decodes, 4096 + draw(4096), chunk, 8192 + draw(8192));
    td_cost_learner_observe(&l, &w, td_cost_step_us(&slow, &w));
  }
  td_cost_model m = td_cost_learner_model(&l);
  for (uint32_t n_decodes = 0; n_decodes <= 64; n_decodes += 64)
    for (uint32_t chunk = n_decodes == 0 ? 448 : 0; chunk <= 448; chunk += 448) {
      td_step_work w = work(n_decodes, 6144, chunk, 12288);
      double times = td_cost_step_us(&m, &w) / td_cost_step_us(&slow, &w);
      most = fmax(most, fmax(times, 1 / times));
    }
  assert_true(m.hybrid_beside == slow.hybrid_beside && most < 1.02);
}

/* One kind of step informs about the others, as far as the whole device is slower. */
static void what_was_not_seen_is_corrected_too(void **state)
{
  td_cost_model slow = td_cost_epyc_smollm2;
  td_cost_learner l;
  for (uint32_t i = 0; i < slow.n_points; i++)
    slow.tokens_us[i] *= 8;
  slow.decode_us_per_kv_token *= 8;
  slow.prefill_us_per_pair *= 8;
  slow.logits_us_per_row *= 8;
  td_cost_learner_init(&l, &td_cost_epyc_smollm2, TD_COST_UNCERTAINTY_GUESSED);
  td_step_work decode = work(1, 100, 0, 0), chunk = work(0, 0, 128, 1000);
  for (uint32_t i = 0; i < 8; i++)
    td_cost_learner_observe(&l, &decode, td_cost_step_us(&slow, &decode));
  td_cost_model m = td_cost_learner_model(&l);
  double decode_off = td_cost_step_us(&m, &decode) / td_cost_step_us(&slow, &decode);
  double chunk_off = td_cost_step_us(&m, &chunk) / td_cost_step_us(&slow, &chunk);
  print_message("after 8 decodes: decodes at %.2f of their time, chunks at %.2f\n", decode_off, chunk_off);
  assert_true(fabs(decode_off - 1) < 0.1 && chunk_off > 0.6 && chunk_off < 1.5);
}

/* The first step of all reads weights from a disk. */
static void one_absurd_step_is_forgotten(void **state)
{
  td_cost_learner l;
  td_step_work w = work(2, 100, 0, 0);
  double us = td_cost_step_us(&td_cost_epyc_smollm2, &w);
  td_cost_learner_init(&l, &td_cost_epyc_smollm2, TD_COST_UNCERTAINTY_GUESSED);
  td_cost_learner_observe(&l, &w, 1000 * us);
  for (uint32_t i = 0; i < 4; i++)
    td_cost_learner_observe(&l, &w, us);
  td_cost_model m = td_cost_learner_model(&l);
  assert_true(fabs(td_cost_step_us(&m, &w) / us - 1) < 0.1);
  for (uint32_t i = 0; i < 500; i++) /* and later it changes hardly anything */
    td_cost_learner_observe(&l, &w, us);
  td_cost_learner_observe(&l, &w, 1000 * us);
  m = td_cost_learner_model(&l);
  assert_true(fabs(td_cost_step_us(&m, &w) / us - 1) < 0.02);
  td_cost_learner_observe(&l, &w, 0); /* nothing can be learned from these */
  td_cost_learner_observe(&l, &w, -1);
  td_cost_learner_observe(&l, &w, (double)NAN);
  td_cost_learner_observe(&l, &w, (double)INFINITY);
  td_cost_learner_observe(&l, &(td_step_work){0}, us);
  m = td_cost_learner_model(&l);
  assert_true(td_cost_is_valid(&m) && fabs(td_cost_step_us(&m, &w) / us - 1) < 0.02);
}

/* However long it runs, and however much times jump, the model stays valid and follows. */
static void it_follows_a_device_that_changes(void **state)
{
  td_cost_learner l;
  random_state = 7;
  td_cost_learner_init(&l, &td_cost_epyc_smollm2, TD_COST_UNCERTAINTY_GUESSED);
  for (uint32_t i = 0; i < 40000; i++) {
    td_step_work w = any_work();
    td_cost_learner_observe(&l, &w, time_of(&w) * (i < 20000 ? 1 : 2));
  }
  td_cost_model m = td_cost_learner_model(&l);
  assert_true(td_cost_is_valid(&m));
  td_step_work w = work(4, 500, 0, 0);
  double times = td_cost_step_us(&m, &w) / td_cost_step_us(&truth, &w);
  assert_true(times > 1.7 && times < 2.5);
}

/* If all chunks come after long prompts, tokens and attention vary together; and the table lacks an edge:
 * from 370 to 450 tokens steps take a quarter longer. On the class's own device, that must not be taken for a
 * cost of attention, which would make long chunks seem cheap: the prediction for a chunk without context
 * stays as before. */
static void one_load_teaches_no_wrong_shares(void **state)
{
  const td_cost_class *c = &td_cost_class_gpu;
  td_cost_model learned;
  td_cost_learner l;
  td_step_work unseen = work(0, 0, 2048, 0);
  random_state = 5;
  assert_float_equal(td_cost_guess_uncertainty(c, &c->basis), TD_COST_UNCERTAINTY_LEARNED, 1e-9);
  td_cost_learner_init(&l, c->cost, td_cost_guess_uncertainty(c, &c->basis));
  for (int i = 0; i < 7000; i++) {
    uint32_t n_decodes = 4 + draw(14), chunk = 0, behind = 0;
    if (draw(5) == 0) {
      bool is_short = draw(10) < 3;
      chunk = is_short ? 80 + draw(380) : 1500 + draw(250);
      behind = 5120 + draw(1800);
    }
    td_step_work w = work(n_decodes, 5000, chunk, behind);
    double us = td_cost_step_us(c->cost, &w) * (1 + (chunk == 0 ? 0.004 * n_decodes : 0));
    us *= chunk >= 370 && chunk < 450 ? 1.25 : 1;
    td_cost_learner_observe(&l, &w, us * (0.95 + 0.1 * draw(1000) / 1000));
  }
  learned = td_cost_learner_model(&l);
  assert_float_equal(td_cost_step_us(&learned, &unseen) / td_cost_step_us(c->cost, &unseen), 1, 0.06);
  td_cost_basis other = c->basis;
  other.weight_bytes *= 1.5;
  assert_float_equal(td_cost_guess_uncertainty(c, &other), TD_COST_UNCERTAINTY_LEARNED + log(1.5), 1e-9);
  other.flop_us /= 100;
  assert_float_equal(td_cost_guess_uncertainty(c, &other), TD_COST_UNCERTAINTY_GUESSED, 1e-9);
}

/* The guess for the class's own device is its table. For others it scales with bytes where weights are read,
 * with operations where GEMMs compute, and a small model's layers have a minimal time each. */
static void guesses(void **state)
{
  static const td_cost_class *const classes[] = {&td_cost_class_gpu, &td_cost_class_cpu};
  for (int i = 0; i < 2; i++) {
    const td_cost_class *c = classes[i];
    const td_cost_model *of = c->cost;
    uint32_t last = of->n_points - 1;
    td_cost_basis b = c->basis;
    td_cost_model m = td_cost_guess(c, &b);
    assert_true(td_cost_is_valid(&m));
    assert_true(fabs(m.tokens_us[0] / of->tokens_us[0] - 1) < 1e-9);
    assert_true(fabs(m.tokens_us[last] / of->tokens_us[last] - 1) < 1e-9);
    b.bytes_us *= 2;
    m = td_cost_guess(c, &b);
    assert_true(fabs(m.tokens_us[0] / of->tokens_us[0] - 0.5) < 1e-9);
    assert_true(fabs(m.tokens_us[last] / of->tokens_us[last] - 1) < 1e-9);
    assert_true(fabs(m.decode_us_per_kv_token / of->decode_us_per_kv_token - 0.5) < 1e-9);
    b = c->basis;
    b.flop_us /= 3;
    m = td_cost_guess(c, &b);
    assert_true(fabs(m.tokens_us[0] / of->tokens_us[0] - 1) < 1e-9);
    assert_true(fabs(m.tokens_us[last] / of->tokens_us[last] - 3) < 1e-9);
    assert_true(fabs(m.prefill_us_per_pair / of->prefill_us_per_pair - 3) < 1e-9);
    b = c->basis;
    b.weight_bytes = b.token_flop = 1;
    m = td_cost_guess(c, &b);
    assert_true(fabs(m.tokens_us[0] - c->layer_us * b.n_layers) < 1e-9 && td_cost_is_valid(&m));
  }
}

/* From one token to beyond the last knot: the prediction for a step is what was learned from it. */
static void each_knot_learns(void **state)
{
  td_cost_model base = {.n_points = TD_COST_KNOTS + 1};
  for (uint32_t k = 0; k < base.n_points; k++) {
    base.tokens[k] = 1u << 2 * k;
    base.tokens_us[k] = 1000 + 10.0 * base.tokens[k];
  }
  for (uint32_t k = 0; k < base.n_points; k++) {
    td_cost_learner l;
    const td_step_work w = {.n_tokens = base.tokens[k], .n_rows = 1};
    td_cost_learner_init(&l, &base, TD_COST_UNCERTAINTY_GUESSED);
    for (int i = 0; i < 50; i++)
      td_cost_learner_observe(&l, &w, 2 * base.tokens_us[k]);
    const td_cost_model m = td_cost_learner_model(&l);
    if (fabs(m.tokens_us[k] / base.tokens_us[k] - 2) > 0.05)
      fail_msg("%u tokens: %g us", base.tokens[k], m.tokens_us[k]);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(predictions_converge),
      cmocka_unit_test(attention_beside_is_learned),
      cmocka_unit_test(kv_beside_chunks_has_a_price_of_its_own),
      cmocka_unit_test(what_was_not_seen_is_corrected_too),
      cmocka_unit_test(one_absurd_step_is_forgotten),
      cmocka_unit_test(it_follows_a_device_that_changes),
      cmocka_unit_test(one_load_teaches_no_wrong_shares),
      cmocka_unit_test(each_knot_learns),
      cmocka_unit_test(guesses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
