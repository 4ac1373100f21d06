/* The sampler against float64: greedy, the kept sets of min-p, top-k and top-p by sorting, chi-square of
 * the draws, and a draw that depends only on seed and position. The vector code agrees bit for bit with the
 * definition that all backends share (sample_math.h). */
#include "kernels_fixture.h"

#include "kernels/cpu/cpu.h"
#include "kernels/sample_math.h"

#define PLAIN(t, p, m, k, s)                                                                                 \
  {                                                                                                          \
    .temperature = t, .top_p = p, .min_p = m, .top_k = k, .seed = s                                          \
  }

typedef struct sampler {
  td_backend *be;
  td_plan *plan;
  td_devptr logits;
} sampler;

/* One row per slot, slot i at position kv_len[i]. */
static sampler make_sampler(const char *isa, uint32_t n_threads, uint32_t vocab)
{
  sampler s = {.be = fx_backend(isa, n_threads)};
  if (!s.be)
    return s;
  assert_int_equal(td_plan_create(FX_MAX_ROWS, FX_MAX_TOKENS, FX_MAX_ROWS, 1, 16, &s.plan, NULL), TD_OK);
  s.logits = fx_alloc(s.be, (size_t)FX_MAX_ROWS * vocab);
  return s;
}

static void free_sampler(sampler *s)
{
  if (!s->be)
    return;
  td_plan_destroy(s->plan);
  s->be->ops->destroy(s->be);
}

/* n rows with the same logits; row i is at position first + i. */
static void sample(sampler *s, const float *logits, uint32_t vocab, td_sampling p, uint32_t first, uint32_t n,
                   int32_t *ids)
{
  td_plan_clear(s->plan);
  for (uint32_t i = 0; i < n; i++) {
    memcpy((float *)s->logits.addr + (size_t)i * vocab, logits, vocab * sizeof *logits);
    s->be->ops->set_sampling(s->be, i, &p);
    s->plan->rows[i] = (td_plan_row){.slot = i, .q_start = i, .q_len = 1, .kv_len = first + i};
    td_plan_add_sample(s->plan, i);
  }
  s->plan->n_rows = s->plan->n_tokens = n;
  td_op op = {
      .kind = TD_OP_SAMPLE, .extent = TD_EXTENT_LOGITS, .sample = {.logits = s->logits, .vocab = vocab}};
  fx_run(s->be, s->plan, &op, 1, ids);
}

static const td_sampling greedy = {.temperature = 0, .top_p = 1};

static void test_greedy(void **state)
{
  for (int isa = 0; isa < FX_ISAS; isa++) {
    sampler s = make_sampler(fx_isas[isa], 2, 1000);
    for (int round = 0; s.be && round < 300; round++) {
      uint32_t vocab = 1 + fx_below(1000), best = 0;
      float *x = fx_floats(vocab, 3);
      for (uint32_t i = 0; i < vocab; i++)
        x[i] = round % 2 ? roundf(x[i]) : x[i]; /* ties */
      if (round % 5 == 0)
        x[fx_below(vocab)] = -INFINITY;
      for (uint32_t i = 0; i < vocab; i++)
        best = x[i] > x[best] ? i : best;
      int32_t id;
      td_sampling p = greedy;
      p.temperature = round % 3 ? 0 : 1e-7f;
      p.top_k = 5;
      sample(&s, x, vocab, p, 1, 1, &id);
      assert_int_equal(id, vocab == 1 && isinf(x[0]) ? FX_NAN : (int32_t)best);
      free(x);
    }
    free_sampler(&s);
  }
}

static void test_not_a_number(void **state)
{
  for (int isa = 0; isa < FX_ISAS; isa++) {
    sampler s = make_sampler(fx_isas[isa], 1, 100);
    td_sampling warm = {.temperature = 1, .top_p = 0.9f, .top_k = 3, .seed = 1};
    for (uint32_t at = 0; s.be && at < 100; at++) {
      int32_t id;
      float x[100];
      for (int bad = 0; bad < 2; bad++) {
        for (uint32_t i = 0; i < 100; i++)
          x[i] = (float)(i % 7);
        x[at] = bad ? NAN : INFINITY;
        sample(&s, x, 100, greedy, 1, 1, &id);
        assert_int_equal(id, FX_NAN);
        sample(&s, x, 100, warm, 1, 1, &id);
        assert_int_equal(id, FX_NAN);
      }
      for (uint32_t i = 0; i < 100; i++)
        x[i] = -INFINITY;
      sample(&s, x, 100, warm, 1, 1, &id);
      assert_int_equal(id, FX_NAN);
      x[at] = -3;
      sample(&s, x, 100, warm, 1, 1, &id);
      assert_int_equal(id, (int32_t)at);
    }
    free_sampler(&s);
  }
}

static const double *sort_by;
static int descending(const void *a, const void *b)
{
  double x = sort_by[*(const uint32_t *)a], y = sort_by[*(const uint32_t *)b];
  return x < y ? 1 : x > y ? -1 : 0;
}

/* Probabilities after min-p, top-k and top-p, by sorting in double; tokens with equal logits are kept or
 * removed together. Returns false if the cut of top-p is too close to call. */
static bool reference(const float *x, uint32_t n, td_sampling p, double *prob)
{
  uint32_t *order = malloc(n * sizeof *order);
  double max = -INFINITY, total = 0, *logits = malloc(n * sizeof *logits);
  for (uint32_t i = 0; i < n; i++) {
    order[i] = i;
    logits[i] = (double)x[i];
    max = logits[i] > max ? logits[i] : max;
  }
  for (uint32_t i = 0; i < n; i++) {
    prob[i] = exp((logits[i] - max) / (double)p.temperature);
    prob[i] = prob[i] >= (double)p.min_p ? prob[i] : 0;
  }
  sort_by = logits;
  qsort(order, n, sizeof *order, descending);
  for (uint32_t i = 0; i < n; i++)
    if (p.top_k && i >= (uint32_t)p.top_k && logits[order[i]] < logits[order[p.top_k - 1]])
      prob[order[i]] = 0;
  for (uint32_t i = 0; i < n; i++)
    total += prob[i];
  double above = 0;
  bool clear = true;
  for (uint32_t i = 0;
       i < n && p.top_p < 1;) { /* a group of equal logits stays if the mass above it is below top_p */
    double group = 0;
    uint32_t j = i;
    for (; j < n && logits[order[j]] == logits[order[i]]; j++)
      group += prob[order[j]];
    clear &= fabs(above / total - (double)p.top_p) > 1e-6;
    if (above / total >= (double)p.top_p)
      for (uint32_t k = i; k < j; k++)
        prob[order[k]] = 0;
    above += group;
    i = j;
  }
  total = 0;
  for (uint32_t i = 0; i < n; i++)
    total += prob[i];
  for (uint32_t i = 0; i < n; i++)
    prob[i] /= total;
  free(order);
  free(logits);
  return clear;
}

/* Draws many tokens: none outside the kept set, and their counts agree with the probabilities. */
static void check_distribution(sampler *s, const float *x, uint32_t vocab, td_sampling p, uint32_t draws)
{
  double *prob = malloc(vocab * sizeof *prob), chi2 = 0, pool = 0, pool_seen = 0;
  uint32_t *seen = calloc(vocab, sizeof *seen), freedom = 0;
  int32_t ids[FX_MAX_ROWS];
  if (reference(x, vocab, p, prob)) {
    for (uint32_t d = 0; d < draws; d += FX_MAX_ROWS) {
      sample(s, x, vocab, p, 1 + d, FX_MAX_ROWS, ids);
      for (uint32_t i = 0; i < FX_MAX_ROWS; i++) {
        assert_true(ids[i] >= 0 && (uint32_t)ids[i] < vocab);
        if (prob[ids[i]] == 0)
          fail_msg("token %d was dropped by min_p %g, top_k %d, top_p %g, but drawn", ids[i], (double)p.min_p,
                   p.top_k, (double)p.top_p);
        seen[ids[i]]++;
      }
    }
    draws = (draws + FX_MAX_ROWS - 1) / FX_MAX_ROWS * FX_MAX_ROWS;
    for (uint32_t i = 0; i < vocab; i++) { /* cells of at least 5, small ones pooled */
      double expected = prob[i] * draws;
      if (expected >= 5) {
        chi2 += (seen[i] - expected) * (seen[i] - expected) / expected;
        freedom++;
      } else {
        pool += expected;
        pool_seen += seen[i];
      }
    }
    if (pool >= 5) {
      chi2 += (pool_seen - pool) * (pool_seen - pool) / pool;
      freedom++;
    }
    double limit = freedom - 1 + 5 * sqrt(2.0 * (freedom - 1)) + 12; /* exceeded about once in a million */
    if (freedom > 1 && chi2 > limit)
      fail_msg("chi-square %.1f with %u degrees of freedom", chi2, freedom - 1);
  }
  free(prob);
  free(seen);
}

static void test_draws_follow_the_distribution(void **state)
{
  sampler s = make_sampler("scalar", 2, 2000);
  for (int round = 0; round < 60; round++) {
    uint32_t vocab = 2 + fx_below(round % 4 ? 60 : 1998);
    float *x = fx_floats(vocab, 2);
    if (round % 3 == 0)
      for (uint32_t i = 0; i < vocab; i++)
        x[i] = roundf(x[i]);
    td_sampling p = {.temperature = 0.3f + 1.5f * (float)fx_uniform(), .top_p = 1, .seed = fx_random()};
    if (round % 5 == 1 || round % 5 == 4)
      p.top_k = 1 + (int32_t)fx_below(vocab);
    if (round % 5 == 2 || round % 5 == 4)
      p.top_p = 0.1f + 0.89f * (float)fx_uniform();
    if (round % 5 == 3 || round % 5 == 4)
      p.min_p = 0.3f * (float)fx_uniform();
    check_distribution(&s, x, vocab, p, vocab > 100 ? 1000 : 4000);
    free(x);
  }
  free_sampler(&s);
}

static void test_same_draw_everywhere(void **state)
{
  enum { VOCAB = 49152, ROWS = 12 };
  float *x = fx_floats(VOCAB, 4);
  int32_t first[4][ROWS], ids[ROWS];
  td_sampling ps[4] = {{.temperature = 1, .top_p = 1, .seed = 7},
                       {.temperature = 0.8f, .top_p = 0.95f, .seed = 8},
                       {.temperature = 1.5f, .top_p = 1, .min_p = 0.02f, .top_k = 40, .seed = 9},
                       {.temperature = 1, .top_p = 0.5f, .min_p = 0.001f, .top_k = 1000, .seed = 10}};
  bool have_first = false;
  for (int isa = 0; isa < FX_ISAS; isa++)
    for (uint32_t threads = 1; threads <= 2; threads++) {
      sampler s = make_sampler(fx_isas[isa], threads, VOCAB);
      for (int i = 0; s.be && i < 4; i++) {
        sample(&s, x, VOCAB, ps[i], 100, ROWS, ids);
        if (!have_first)
          memcpy(first[i], ids, sizeof ids);
        assert_memory_equal(first[i], ids, sizeof ids);
        for (uint32_t r = 0; r < ROWS; r++) { /* alone, at the same position */
          int32_t alone;
          sample(&s, x, VOCAB, ps[i], 100 + r, 1, &alone);
          assert_int_equal(alone, first[i][r]);
        }
      }
      have_first |= s.be != NULL;
      free_sampler(&s);
    }
  bool differ = false;
  for (int r = 1; r < ROWS; r++)
    differ |= first[0][r] != first[0][0];
  assert_true(differ); /* the position matters */
  free(x);
}

/* ---- the definition, compiled here as a GPU compiles it ---- */

enum { CHUNK = 1 << 16 };

/* Compares the weights of x[0..n) by every instruction set with the definition. */
static void check_weights(td_backend *bes[FX_ISAS], const float *x, uint32_t n, float max,
                          float inv_temperature)
{
  static uint32_t want[CHUNK], got[CHUNK];
  uint64_t total = 0;
  for (uint32_t i = 0; i < n; i++)
    total += want[i] = td_sample_weight(td_sample_exponent(x[i], max, inv_temperature));
  for (int isa = 0; isa < FX_ISAS; isa++) {
    if (!bes[isa])
      continue;
    assert_int_equal(cpu_self(bes[isa])->isa->weights(x, n, max, inv_temperature, got), total);
    for (uint32_t i = 0; i < n; i++)
      if (want[i] != got[i])
        fail_msg("%s: weight of %a, max %a, 1/T %a: %u, defined as %u", fx_isas[isa], (double)x[i],
                 (double)max, (double)inv_temperature, got[i], want[i]);
  }
}

static float float_of_bits(uint32_t u)
{
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static void test_weights_as_defined(void **state)
{
  td_backend *bes[FX_ISAS];
  static float x[CHUNK];
  for (int isa = 0; isa < FX_ISAS; isa++)
    bes[isa] = fx_backend(fx_isas[isa], 1);
  for (int round = 0; round < 32; round++) { /* 2 million random logits */
    float max = fx_normal() * 20, scale = expf(3 * fx_normal());
    for (uint32_t i = 0; i < CHUNK; i++) {
      x[i] = max - (float)fx_uniform() * scale * 4;
      x[i] = fx_below(64) ? x[i] : -INFINITY;
    }
    check_weights(bes, x, CHUNK - fx_below(9), max,
                  td_sample_inv_temperature(0.01f + 2 * (float)fx_uniform()));
  }
  uint32_t n = 0;
  for (uint64_t bits = 0x80000000u; bits <= 0xFF800000u;
       bits += 2039) { /* 1 million exponents: from -0 to -infinity */
    x[n++] = float_of_bits((uint32_t)bits);
    if (n == CHUNK || bits + 2039 > 0xFF800000u) {
      check_weights(bes, x, n, 0, 1);
      n = 0;
    }
  }
  float at = -20.9f; /* every float near the end of the range of weights */
  for (n = 0; at < -20.7f; at = nextafterf(at, 0)) {
    x[n++] = at;
    if (n == CHUNK) {
      check_weights(bes, x, n, 0, 1);
      n = 0;
    }
  }
  check_weights(bes, x, n, 0, 1);
  for (int isa = 0; isa < FX_ISAS; isa++)
    if (bes[isa])
      bes[isa]->ops->destroy(bes[isa]);
}

static void test_weights_near_exp(void **state)
{
  for (int i = 0; i < 2000000; i++) {
    float u = -25 * (float)fx_uniform();
    double want = exp((double)u) * (double)TD_SAMPLE_ONE, got = td_sample_weight(u);
    if (fabs(got - want) > 1 + want * 2e-7)
      fail_msg("weight of %a: %.0f, exp says %.3f", (double)u, got, want);
  }
  assert_int_equal(td_sample_weight(0), TD_SAMPLE_ONE);
  assert_int_equal(td_sample_weight(-0.0f), TD_SAMPLE_ONE);
  assert_int_equal(td_sample_weight(-INFINITY), 0);
}

static void test_keys(void **state)
{
  static const float ends[] = {-INFINITY, -3e38f, -1, -1e-45f, 0, 1e-45f, 1, 3e38f, INFINITY};
  for (size_t i = 1; i < sizeof ends / sizeof *ends; i++)
    assert_true(td_sample_key(ends[i - 1]) < td_sample_key(ends[i]));
  assert_int_equal(td_sample_key(-0.0f), td_sample_key(0.0f));
  for (int i = 0; i < 2000000; i++) {
    float a = float_of_bits((uint32_t)fx_random()),
          b = i % 2 ? nextafterf(a, INFINITY) : float_of_bits((uint32_t)fx_random());
    if (isnan(a) || isnan(b))
      continue;
    assert_int_equal(a < b, td_sample_key(a) < td_sample_key(b));
    assert_true(td_sample_logit_of_key(td_sample_key(a)) == a);
  }
}

/* Against exact integers: min_p and top_p are multiples of 2^-149. */
static void test_thresholds(void **state)
{
  assert_int_equal(td_sample_least(0), 1);
  assert_int_equal(td_sample_least(1), TD_SAMPLE_ONE);
  assert_int_equal(td_sample_least(1e-20f), 1);
  assert_true(td_sample_least(1.5f) > TD_SAMPLE_ONE);
  for (int i = 0; i < 100000; i++) {
    uint32_t mantissa = 1 + fx_below(1u << 24), least = td_sample_least(ldexpf((float)mantissa, -24));
    assert_int_equal(least, mantissa << 6);
    least = td_sample_least(ldexpf((float)mantissa, -36)); /* mantissa / 2^6, rounded up */
    assert_int_equal(least, (mantissa + 63) >> 6);
    uint64_t total = TD_SAMPLE_ONE + (fx_random() >> (17 + fx_below(16))),
             want = td_sample_want(total, ldexpf((float)mantissa, -24));
    unsigned __int128 product = (unsigned __int128)total * mantissa;
    uint64_t exact = (uint64_t)((product + (1u << 24) - 1) >> 24),
             slack = exact >> 52; /* a double has 53 bits */
    assert_true(want + slack + 1 >= exact && want <= exact + slack + 1 && want <= total && want >= 1);
    assert_true(product >> 53 || want == exact);
  }
}

static void test_random_bits(void **state)
{
  /* the known answer of Philox4x32-10 for a counter and key of zeros: 6627e8d5 e169c58d bc57ac4c 9b00dbd8 */
  assert_true(td_sample_random(0, 0) == 0xe169c58d6627e8d5u);
  assert_true(td_sample_random(0, 1) != td_sample_random(1, 0));
  assert_true(td_sample_draw(UINT64_MAX, 1000) == 999 && td_sample_draw(0, 1000) == 0);
  assert_true(td_sample_draw(1ull << 63, 1ull << 47) == 1ull << 46);
}

/* A seed must always give the same tokens: these were written down with the definition. */
static void test_tokens_stay(void **state)
{
  enum { VOCAB = 5003, CASES = 5, EACH = 6 };
  static const td_sampling ps[CASES] = {
      {.temperature = 1, .top_p = 1, .seed = 1},
      {.temperature = 0.7f, .top_p = 0.9f, .seed = 2},
      {.temperature = 1.3f, .top_p = 1, .top_k = 50, .seed = 3},
      {.temperature = 1, .top_p = 1, .min_p = 0.05f, .seed = 4},
      {.temperature = 1.1f, .top_p = 0.95f, .min_p = 0.01f, .top_k = 200, .seed = UINT64_MAX}};
  static const int32_t want[CASES][EACH] = {{2791, 3964, 4456, 477, 3990, 1464},
                                            {2550, 2448, 4236, 1668, 1888, 3519},
                                            {2414, 2194, 1906, 1173, 3655, 987},
                                            {121, 3571, 2346, 833, 4658, 228},
                                            {3587, 833, 2142, 4066, 4896, 1482}};
  static float x[VOCAB];
  sampler s = make_sampler("scalar", 1, VOCAB);
  for (uint32_t i = 0; i < VOCAB; i++) /* exact in float, so no library function is needed */
    x[i] = (float)((i * 2654435761u) >> 8) * 0x1p-21f - (float)(i % 17) * 0.25f;
  for (int c = 0; c < CASES; c++) {
    int32_t ids[EACH];
    sample(&s, x, VOCAB, ps[c], 1000, EACH, ids);
    for (int i = 0; i < EACH; i++)
      if (ids[i] != want[c][i])
        fail_msg("case %d, draw %d: token %d, not %d", c, i, ids[i], want[c][i]);
  }
  free_sampler(&s);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_greedy),
      cmocka_unit_test(test_not_a_number),
      cmocka_unit_test(test_draws_follow_the_distribution),
      cmocka_unit_test(test_same_draw_everywhere),
      cmocka_unit_test(test_weights_as_defined),
      cmocka_unit_test(test_weights_near_exp),
      cmocka_unit_test(test_keys),
      cmocka_unit_test(test_thresholds),
      cmocka_unit_test(test_random_bits),
      cmocka_unit_test(test_tokens_stay),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
