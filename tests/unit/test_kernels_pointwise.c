/* RMSNorm, SwiGLU, exp, gather and the angle functions of the CPU backend against float64, and the same bits
 * on every instruction set. */
#include "kernels_fixture.h"

#include "kernels/cpu/cpu.h"

static void test_rmsnorm(void **state)
{
  td_backend *bes[FX_BACKENDS];
  fx_backends(bes);
  for (int round = 0; round < 40; round++) {
    uint32_t width = 1 + fx_below(700), n = 1 + fx_below(20);
    size_t total = (size_t)n * width;
    float *x = fx_floats(total, 3), *w = fx_floats(width, 1), *first = NULL;
    for (int b = 0; b < FX_BACKENDS; b++) {
      td_backend *be = bes[b];
      if (!be)
        continue;
      td_devptr out = fx_alloc(be, total);
      td_op op = {.kind = TD_OP_RMSNORM,
                  .rmsnorm = {.x = fx_upload(be, x, total),
                              .weight = fx_upload(be, w, width),
                              .out = out,
                              .width = width,
                              .eps = 1e-5f}};
      fx_run_rows(be, n, &op);
      float *got = fx_download(be, out, total);
      if (!first) {
        first = got;
        continue;
      }
      fx_same(first, got, total, "rmsnorm");
      free(got);
    }
    for (uint32_t t = 0; t < n; t++) {
      double sum = 0;
      for (uint32_t i = 0; i < width; i++) {
        double v = (double)x[(size_t)t * width + i];
        sum += v * v;
      }
      double scale = 1 / sqrt(sum / width + (double)1e-5f);
      for (uint32_t i = 0; i < width; i++) {
        double want = (double)x[(size_t)t * width + i] * scale * (double)w[i];
        assert_true(fabs((double)first[(size_t)t * width + i] - want) <= 1e-6 * fabs(want) + 1e-30);
      }
    }
    free(x);
    free(w);
    free(first);
  }
  fx_backends_destroy(bes);
}

/* In float64, added to or replacing out: rows of width elements, stride apart. */
static void norm_want(const td_rmsnorm_params *p, uint32_t n, const float *x, const float *w, double *out)
{
  for (uint32_t t = 0; t < n; t++) {
    double sum = 0, squares = 0;
    const float *row = x + (size_t)t * p->stride;
    for (uint32_t i = 0; i < p->width; i++)
      sum += (double)row[i];
    double mean = p->centred ? sum / p->width : 0;
    for (uint32_t i = 0; i < p->width; i++)
      squares += ((double)row[i] - mean) * ((double)row[i] - mean);
    for (uint32_t i = 0; i < p->width; i++) {
      double v = ((double)row[i] - mean) / sqrt(squares / p->width + (double)p->eps) * (double)w[i];
      out[(size_t)t * p->stride + i] = v + (p->add ? out[(size_t)t * p->stride + i] : 0);
    }
  }
}

/* Centred or not, added or not, and rows that are parts of longer ones, whose other elements must not change.
 */
static void test_rmsnorm_forms(void **state)
{
  td_backend *bes[FX_BACKENDS];
  fx_backends(bes);
  for (int round = 0; round < 24; round++) {
    uint32_t width = 1 + fx_below(300), stride = width + fx_below(3) * 5, n = 1 + fx_below(9);
    size_t total = (size_t)n * stride;
    float *x = fx_floats(total, 3), *w = fx_floats(width, 1), *held = fx_floats(total, 2), *first = NULL;
    double *want = malloc(total * sizeof *want);
    td_rmsnorm_params p = {
        .width = width, .stride = stride, .eps = 1e-5f, .centred = round & 1, .add = round & 2};
    bool in_place = !p.add && round & 4;
    for (size_t i = 0; i < total; i++)
      want[i] = (double)(in_place ? x : held)[i];
    norm_want(&p, n, x, w, want);
    for (int b = 0; b < FX_BACKENDS; b++) {
      if (!bes[b])
        continue;
      p.x = fx_upload(bes[b], x, total);
      p.out = in_place ? p.x : fx_upload(bes[b], held, total);
      p.weight = fx_upload(bes[b], w, width);
      fx_run_rows(bes[b], n, &(td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p});
      float *got = fx_download(bes[b], p.out, total);
      if (first)
        fx_same(first, got, total, "rmsnorm forms");
      for (size_t i = 0; i < total && !first; i++)
        assert_true(fabs((double)got[i] - want[i]) <= 4e-6 * (fabs(want[i]) + 1));
      if (first)
        free(got);
      else
        first = got;
    }
    free(x), free(w), free(held), free(want), free(first);
  }
  fx_backends_destroy(bes);
}

static void test_swiglu(void **state)
{
  td_backend *bes[FX_BACKENDS];
  fx_backends(bes);
  for (int round = 0; round < 20; round++) {
    uint32_t width = 1 + fx_below(300), n = 1 + fx_below(60);
    float *x = fx_floats((size_t)n * 2 * width, round % 2 ? 40 : 2), *first = NULL;
    for (int b = 0; b < FX_BACKENDS; b++) {
      td_backend *be = bes[b];
      if (!be)
        continue;
      td_devptr out = fx_alloc(be, (size_t)n * width);
      td_op op = {.kind = TD_OP_SWIGLU,
                  .swiglu = {.gate_up = fx_upload(be, x, (size_t)n * 2 * width), .out = out, .width = width}};
      fx_run_rows(be, n, &op);
      float *got = fx_download(be, out, (size_t)n * width);
      if (!first) {
        first = got;
        continue;
      }
      fx_same(first, got, (size_t)n * width, "swiglu");
      free(got);
    }
    for (uint32_t t = 0; t < n; t++)
      for (uint32_t i = 0; i < width; i++) {
        double g = (double)x[(size_t)t * 2 * width + i], u = (double)x[(size_t)t * 2 * width + width + i];
        double want = g / (1 + exp(-g)) * u, got = (double)first[(size_t)t * width + i];
        if (!(fabs(got - want) <= 5e-7 * fabs(want) + 1e-33))
          fail_msg("silu(%g) * %g: %.9g, want %.9g", g, u, got, want);
      }
    free(x);
    free(first);
  }
  fx_backends_destroy(bes);
}

/* exp against double; every instruction set this machine has, same bits. */
static void test_exp(void **state)
{
  enum { N = 400003 };
  static float x[N], first[N], got[N];
  static const float special[] = {0,         -0.0f, INFINITY, -INFINITY, NAN,   -87,
                                  -87.0001f, 88,    1000,     -1000,     1e-30f};
  for (int i = 0; i < N; i++)
    x[i] = (float)((double)i / N * 175.0 - 87.0);
  for (size_t i = 0; i < sizeof special / sizeof *special; i++)
    x[i] = special[i];
  td_isa_scalar.exp(x, N, first);
  double worst = 0;
  for (int i = 0; i < N; i++)
    if (isfinite(x[i]) && x[i] >= -87 && x[i] <= 88) {
      double error = fabs((double)first[i] - exp((double)x[i])) / exp((double)x[i]);
      worst = error > worst ? error : worst;
    }
  printf("    largest relative error of exp: %.3g (%.2f of 2^-24)\n", worst, worst * 16777216);
  assert_true(worst < 1.4 * 0x1p-24);
  assert_true(first[0] == 1 && first[1] == 1 && first[3] == 0 && isnan(first[4]) && first[6] == 0 &&
              first[9] == 0);
  assert_true(first[2] > 1e38f && first[8] > 1e38f);
#ifdef __x86_64__
  extern const td_isa td_isa_avx2;
  if (__builtin_cpu_supports("avx2")) {
    td_isa_avx2.exp(x, N, got);
    for (int i = 0; i < N; i++)
      assert_true(first[i] == got[i] || (isnan(first[i]) && isnan(got[i])));
  }
#endif
#ifdef TD_ISA_ARM64
  td_isa_neon.exp(x, N, got);
  for (int i = 0; i < N; i++)
    assert_true(first[i] == got[i] || (isnan(first[i]) && isnan(got[i])));
#endif
#ifdef TD_ISA_AVX512
  if (__builtin_cpu_supports("avx512dq")) {
    extern const td_isa td_isa_avx512;
    td_isa_avx512.exp(x, N, got);
    for (int i = 0; i < N; i++)
      assert_true(first[i] == got[i] || (isnan(first[i]) && isnan(got[i])));
  } else {
    printf("    skipped: no AVX-512 here\n");
  }
#endif
}

static void test_angles(void **state)
{
  double worst = 0;
  for (int i = 0; i < 1000000; i++) {
    float angle = (float)(fx_uniform() * exp(fx_uniform() * 16)), s, c; /* up to 9 million */
    td_trig_sincos(angle, &s, &c);
    double es = fabs((double)s - sin((double)angle)), ec = fabs((double)c - cos((double)angle));
    worst = es > worst ? es : worst;
    worst = ec > worst ? ec : worst;
  }
  printf("    largest error of sin and cos: %.3g\n", worst);
  assert_true(worst <= 0x1.001p-25);
  float s, c;
  td_trig_sincos(0, &s, &c);
  assert_true(s == 0 && c == 1);
  td_trig_sincos(INFINITY, &s, &c);
  assert_true(isnan(s) && isnan(c));
}

static void test_gather_takes_last_tokens(void **state)
{
  enum { WIDTH = 5, TOKENS = 9 };
  td_backend *be = fx_backend("scalar", 1);
  td_plan *plan;
  assert_int_equal(td_plan_create(4, 16, 4, 1, 16, &plan, NULL), TD_OK);
  plan->n_rows = 3;
  plan->n_tokens = TOKENS;
  plan->rows[0] = (td_plan_row){.q_start = 0, .q_len = 1, .kv_len = 4};
  plan->rows[1] = (td_plan_row){.q_start = 1, .q_len = 5, .kv_len = 5};
  plan->rows[2] = (td_plan_row){.q_start = 6, .q_len = 3, .kv_len = 9};
  td_plan_add_sample(plan, 0);
  td_plan_add_sample(plan, 2);
  float *x = fx_floats(TOKENS * WIDTH, 1);
  td_devptr out = fx_alloc(be, 2 * WIDTH);
  td_op op = {.kind = TD_OP_GATHER,
              .extent = TD_EXTENT_LOGITS,
              .gather = {.x = fx_upload(be, x, TOKENS * WIDTH), .out = out, .width = WIDTH}};
  fx_run(be, plan, &op, 1, NULL);
  float *got = fx_download(be, out, 2 * WIDTH);
  fx_same(got, x, WIDTH, "row 0");
  fx_same(got + WIDTH, x + 8 * WIDTH, WIDTH, "row 2");
  free(got);
  free(x);
  td_plan_destroy(plan);
  be->ops->destroy(be);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rmsnorm), cmocka_unit_test(test_rmsnorm_forms),
      cmocka_unit_test(test_swiglu),  cmocka_unit_test(test_exp),
      cmocka_unit_test(test_angles),  cmocka_unit_test(test_gather_takes_last_tokens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
