/* linear and embed of the CPU backend against float64 over td_dtype_to_f32, and the batch rule: the same
 * bits for any number of rows, threads and instruction set. */
#include "kernels/cpu/int8.h"
#include "kernels_fixture.h"

/* A sum of n products in float, in lanes of n/8: the error is far below this, that of a wrong weight far
 * above. */
#define TOLERANCE 2e-6
/* With int8 activations, relative to the largest weights of each 32, because a weight and its minimum may
 * cancel. */
#define INT8_TOLERANCE 1e-6

typedef struct problem {
  uint32_t n_parts, n_cols, n_tokens, n_out;
  td_weight_part parts[3];
  float *x;
  float *held;          /* [token][out]: the values to which the result is added; NULL: none */
  double *want, *scale; /* [token][out], sum of |w x| */
} problem;

/* The value that an int8 activation represents: the nearest of 255 multiples, for the largest of each 32. */
static void round_activations(const float *x, uint32_t n, float *out)
{
  for (uint32_t k = 0; k < n; k += 32) {
    float most = 0;
    for (uint32_t i = k; i < k + 32; i++)
      most = fmaxf(most, fabsf(x[i]));
    for (uint32_t i = k; i < k + 32; i++)
      out[i] = most > 0 ? nearbyintf(x[i] * (127 / most)) * (most / 127) : 0;
  }
}

/* The largest of the 32 weights that w[k] is among. */
static double largest_near(const float *w, uint32_t k)
{
  double most = 0;
  for (uint32_t i = k / 32 * 32; i < k / 32 * 32 + 32; i++)
    most = fmax(most, fabs((double)w[i]));
  return most;
}

static problem make_problem(const td_dtype *dtypes, const uint32_t *n_rows, uint32_t n_parts, uint32_t n_cols,
                            uint32_t n_tokens, bool bias, bool add)
{
  problem p = {.n_parts = n_parts, .n_cols = n_cols, .n_tokens = n_tokens};
  for (uint32_t i = 0; i < n_parts; i++) {
    p.parts[i] = (td_weight_part){.dtype = dtypes[i],
                                  .data = fx_matrix(dtypes[i], n_rows[i], n_cols),
                                  .n_rows = n_rows[i],
                                  .bias = bias ? fx_floats(n_rows[i], 1) : NULL};
    p.n_out += n_rows[i];
  }
  p.x = fx_floats((size_t)n_tokens * n_cols, 1);
  p.held = add ? fx_floats((size_t)n_tokens * p.n_out, 1) : NULL;
  p.want = calloc((size_t)n_tokens * p.n_out, sizeof *p.want);
  p.scale = calloc((size_t)n_tokens * p.n_out, sizeof *p.scale);
  float *w = malloc(n_cols * sizeof *w), *rounded = fx_floats((size_t)n_tokens * n_cols, 1);
  assert_true(p.want && p.scale && w);
  uint32_t out = 0;
  for (uint32_t i = 0; i < n_parts; i++) {
    uint64_t row_bytes;
    bool int8 = fx_int8_activations && td_int8_serves(dtypes[i]);
    const float *x = int8 ? rounded : p.x;
    if (int8)
      round_activations(p.x, n_tokens * n_cols, rounded);
    assert_true(td_dtype_row_bytes(dtypes[i], n_cols, &row_bytes));
    for (uint32_t r = 0; r < n_rows[i]; r++, out++) {
      td_dtype_to_f32(dtypes[i], (const uint8_t *)p.parts[i].data + r * row_bytes, n_cols, w);
      for (uint32_t t = 0; t < n_tokens; t++) {
        double held = add ? (double)p.held[(size_t)t * p.n_out + out] : 0;
        double sum = (bias ? (double)p.parts[i].bias[r] : 0) + held, scale = fabs(sum) + fabs(held);
        for (uint32_t k = 0; k < n_cols; k++) {
          double xk = (double)x[(size_t)t * n_cols + k];
          sum += (double)w[k] * xk;
          scale += fabs(int8 ? largest_near(w, k) * xk : (double)w[k] * xk);
        }
        p.want[(size_t)t * p.n_out + out] = sum;
        p.scale[(size_t)t * p.n_out + out] = scale;
      }
    }
  }
  free(w);
  free(rounded);
  return p;
}

static void free_problem(problem *p)
{
  for (uint32_t i = 0; i < p->n_parts; i++) {
    free((void *)p->parts[i].data);
    free((void *)p->parts[i].bias);
  }
  free(p->x);
  free(p->held);
  free(p->want);
  free(p->scale);
}

static bool has_bias(const problem *p)
{
  for (uint32_t i = 0; i < p->n_parts; i++)
    if (p->parts[i].bias)
      return true;
  return false;
}

static float *run(td_backend *be, const problem *p, uint32_t first, uint32_t n)
{
  td_weight *w;
  td_error err = {0};
  if (be->ops->weight_import(be, p->parts, p->n_parts, p->n_cols, &w, &err) != TD_OK)
    fail_msg("%s", err.message);
  td_devptr x = fx_upload(be, p->x + (size_t)first * p->n_cols, (size_t)n * p->n_cols);
  float *other = fx_floats((size_t)n * p->n_out, 1); /* is overwritten if the result is not added */
  td_devptr out = fx_upload(be, p->held ? p->held + (size_t)first * p->n_out : other, (size_t)n * p->n_out);
  free(other);
  td_op op = {.kind = TD_OP_LINEAR,
              .linear = {.weight = w,
                         .x = x,
                         .out = out,
                         .n_in = p->n_cols,
                         .n_out = p->n_out,
                         .bias = has_bias(p),
                         .out_f32 = true,
                         .add = p->held != NULL}};
  fx_run_rows(be, n, &op);
  return fx_download(be, out, (size_t)n * p->n_out);
}

static void check(td_backend *bes[FX_BACKENDS], const problem *p)
{
  float *first = run(bes[0], p, 0, p->n_tokens);
  for (size_t i = 0; i < (size_t)p->n_tokens * p->n_out; i++)
    if (!(fabs((double)first[i] - p->want[i]) <=
          (fx_int8_activations ? INT8_TOLERANCE : TOLERANCE) * p->scale[i] + 1e-30))
      fail_msg("%s x%u, %u columns: element %zu is %.9g, want %.9g", td_dtypes[p->parts[0].dtype].name,
               p->n_tokens, p->n_cols, i, (double)first[i], p->want[i]);
  for (int b = 1; b < FX_BACKENDS; b++)
    if (bes[b]) {
      float *other = run(bes[b], p, 0, p->n_tokens);
      fx_same(first, other, (size_t)p->n_tokens * p->n_out, "another instruction set or thread count");
      free(other);
    }
  for (uint32_t begin = 0; begin < p->n_tokens;) { /* the same rows in smaller batches */
    uint32_t n = 1 + fx_below(p->n_tokens - begin);
    td_backend *be = bes[4] ? bes[4] : bes[1];
    float *part = run(be, p, begin, n);
    fx_same(first + (size_t)begin * p->n_out, part, (size_t)n * p->n_out, "another batch");
    free(part);
    begin += n;
  }
  free(first);
}

static void test_every_dtype_and_batch(void **state)
{
  td_backend *bes[FX_BACKENDS];
  for (td_dtype t = 0; t < TD_DTYPE_COUNT; t++) {
    fx_backends(bes);
    for (uint32_t n_tokens = 1; n_tokens <= 70; n_tokens += n_tokens < 14 ? 1 : 1 + fx_below(14)) {
      uint32_t block = td_dtypes[t].block_elements;
      uint32_t n_cols = block == 1 ? 1 + fx_below(300) : block * (1 + fx_below(block == 32 ? 12 : 3));
      problem p = make_problem(&t, &(uint32_t){1 + fx_below(60)}, 1, n_cols, n_tokens, n_tokens % 2,
                               n_tokens % 4 < 2);
      check(bes, &p);
      free_problem(&p);
    }
    fx_backends_destroy(bes);
  }
}

static void check_parts(td_backend *bes[FX_BACKENDS], td_dtype dtypes[3])
{
  for (int i = 0; i < 6; i++) {
    uint32_t n_rows[3] = {30 + fx_below(40), 1 + fx_below(20), 1 + fx_below(33)};
    problem p = make_problem(dtypes, n_rows, 3, 512, 1 + fx_below(24), i % 2, i % 3 == 0);
    check(bes, &p);
    free_problem(&p);
  }
}

static void test_parts_of_different_dtypes(void **state)
{
  td_backend *bes[FX_BACKENDS];
  fx_backends(bes);
  check_parts(bes, (td_dtype[]){TD_Q4_K, TD_Q6_K, TD_F16});
  fx_backends_destroy(bes);
}

static void test_embed_widens_rows(void **state)
{
  enum { VOCAB = 50 };
  td_backend *bes[FX_BACKENDS];
  fx_backends(bes);
  for (int b = 0; b < FX_BACKENDS; b++)
    for (td_dtype t = 0; bes[b] && t < TD_DTYPE_COUNT; t++) {
      uint32_t width = td_dtypes[t].block_elements == 1 ? 77 : 512, n = 40;
      uint64_t row_bytes;
      assert_true(td_dtype_row_bytes(t, width, &row_bytes));
      uint8_t *m = fx_matrix(t, VOCAB, width);
      td_weight *w;
      assert_int_equal(bes[b]->ops->weight_import(bes[b],
                                                  &(td_weight_part){.dtype = t, .data = m, .n_rows = VOCAB},
                                                  1, width, &w, NULL),
                       TD_OK);
      td_plan *plan;
      assert_int_equal(td_plan_create(4, n, 4, 4, 16, &plan, NULL), TD_OK);
      plan->n_tokens = n;
      for (uint32_t i = 0; i < n; i++)
        plan->token_ids[i] = (int32_t)fx_below(VOCAB);
      td_devptr out = fx_alloc(bes[b], (size_t)n * width);
      td_op op = {.kind = TD_OP_EMBED, .embed = {.weight = w, .out = out, .width = width}};
      fx_run(bes[b], plan, &op, 1, NULL);
      float *got = fx_download(bes[b], out, (size_t)n * width), *want = malloc(width * sizeof *want);
      for (uint32_t i = 0; i < n; i++) {
        td_dtype_to_f32(t, m + (uint64_t)plan->token_ids[i] * row_bytes, width, want);
        fx_same(got + (size_t)i * width, want, width, td_dtypes[t].name);
      }
      free(got);
      free(want);
      free(m);
      td_plan_destroy(plan);
    }
  fx_backends_destroy(bes);
}

/* The same with int8 activations. Types that have no int8 GEMM are as exact as before. */
static void test_int8_every_type_and_batch(void **state)
{
  td_backend *bes[FX_BACKENDS];
  uint32_t n_served = 0;
  fx_int8_activations = true;
  fx_backends(bes);
  for (td_dtype t = TD_F32; t < TD_DTYPE_COUNT; t++)
    n_served += td_int8_serves(t);
  assert_int_equal(n_served, 8); /* further types may stay exact, but none of these */
  for (td_dtype t = TD_BF16; t < TD_DTYPE_COUNT; t++)
    for (uint32_t n_tokens = 1; n_tokens <= 40; n_tokens += n_tokens < 10 ? 1 : 1 + fx_below(14)) {
      uint32_t block = td_dtypes[t].block_elements;
      uint32_t n_cols =
          block == 1 ? 1 + fx_below(300) / 32 * 32 : block * (1 + fx_below(block == 32 ? 12 : 3));
      problem p = make_problem(&t, &(uint32_t){1 + fx_below(70)}, 1, n_cols, n_tokens, n_tokens % 2,
                               n_tokens % 4 < 2);
      check(bes, &p);
      free_problem(&p);
    }
  check_parts(bes, (td_dtype[]){TD_Q4_K, TD_F16, TD_Q6_K});
  fx_backends_destroy(bes);
  fx_int8_activations = false;
}

/* Weights and activations at their extremes: 16-bit sums must hold them. */
static void test_int8_largest_sums(void **state)
{
  enum { COLS = 512, ROWS = 33 };
  td_backend *bes[FX_BACKENDS];
  fx_int8_activations = true;
  fx_backends(bes);
  for (td_dtype t = TD_Q4_0; t < TD_DTYPE_COUNT; t++)
    for (uint32_t n_tokens = 3; n_tokens <= 12; n_tokens += 9) {
      problem p = make_problem(&t, &(uint32_t){ROWS}, 1, COLS, n_tokens, false, false);
      free(p.want), free(p.scale);
      uint8_t *w = (uint8_t *)p.parts[0].data;
      uint64_t row_bytes;
      assert_true(td_dtype_row_bytes(t, COLS, &row_bytes));
      for (uint64_t at = 0; at < row_bytes * ROWS; at += td_dtypes[t].block_bytes) {
        memset(w + at, t == TD_Q8_0 ? 0x80 : 0xFF, td_dtypes[t].block_bytes); /* the largest, or -128 */
        fx_put_f16(w + at + (t == TD_Q6_K ? 208 : 0), 0.5f);
        if (t == TD_Q4_1 || t == TD_Q5_1 || t == TD_Q4_K || t == TD_Q5_K)
          fx_put_f16(w + at + 2, 0.25f);
      }
      for (uint32_t i = 0; i < n_tokens * COLS; i++)
        p.x[i] = i / COLS % 2 ? 1.0f : -1.0f;
      p.want = calloc((size_t)n_tokens * ROWS, sizeof *p.want);
      p.scale = calloc((size_t)n_tokens * ROWS, sizeof *p.scale);
      float row[COLS];
      td_dtype_to_f32(t, w, COLS, row);
      for (uint32_t i = 0; i < n_tokens * ROWS; i++)
        for (uint32_t k = 0; k < COLS; k++) {
          p.want[i] += (double)row[k] * (double)p.x[(size_t)(i / ROWS) * COLS + k];
          p.scale[i] += largest_near(row, k);
        }
      check(bes, &p);
      free_problem(&p);
    }
  fx_backends_destroy(bes);
  fx_int8_activations = false;
}

/* A token with NaN or infinite activations makes only its own results NaN. A scale too small to divide by
 * counts as 0. */
static void test_int8_of_no_numbers(void **state)
{
  enum { COLS = 64, ROWS = 20, TOKENS = 5 };
  const float odd[TOKENS] = {NAN, INFINITY, -INFINITY, 1e-40f, 1};
  fx_int8_activations = true;
  for (int i = 0; i < FX_ISAS; i++) {
    td_backend *be = fx_backend(fx_isas[i], 2);
    for (uint32_t repeat = 1; be && repeat <= 3; repeat += 2) {
      td_dtype t = TD_Q4_0;
      problem p = make_problem(&t, &(uint32_t){ROWS}, 1, COLS, TOKENS * repeat, true, false);
      for (uint32_t m = 0; m < TOKENS * repeat; m++)
        for (uint32_t k = 0; k < COLS; k++)
          p.x[m * COLS + k] = k == 37                    ? odd[m % TOKENS]
                              : odd[m % TOKENS] < 1e-30f ? 1e-39f
                                                         : p.x[m * COLS + k];
      float *got = run(be, &p, 0, TOKENS * repeat);
      for (uint32_t m = 0; m < TOKENS * repeat; m++)
        for (uint32_t r = 0; r < ROWS; r++) {
          float v = got[m * ROWS + r];
          assert_int_equal(m % TOKENS < 3, isnan(v) != 0);
          if (m % TOKENS == 3)
            assert_true(v == p.parts[0].bias[r]);
        }
      free(got);
      free_problem(&p);
    }
    if (be)
      be->ops->destroy(be);
  }
  fx_int8_activations = false;
}

static td_program *one_linear(td_backend *be, const td_weight *w)
{
  td_program *p;
  assert_int_equal(td_program_create(1, &p, NULL), TD_OK);
  td_program_add(p, (td_op){.kind = TD_OP_LINEAR,
                            .linear = {.weight = w,
                                       .x = fx_alloc(be, w->n_in),
                                       .out = fx_alloc(be, w->n_out),
                                       .n_in = w->n_in,
                                       .n_out = w->n_out,
                                       .out_f32 = true}});
  return p;
}

/* Packed weights need memory. No machine has enough for the largest ones, and the message says what helps.
 * Weights that are only looked up are not packed. */
static void test_int8_without_memory(void **state)
{
  enum { ROWS = 1 << 20, COLS = 1 << 18, SMALL = 32 };
  static const uint8_t zeros[SMALL * 34];
  fx_int8_activations = true;
  for (int i = 1; i < FX_ISAS; i++) {
    td_backend *be = fx_backend(fx_isas[i], 2);
    td_weight *w;
    td_program *program;
    td_compiled *compiled;
    td_error err = {0};
    if (!be)
      continue;
    td_weight_part part = {
        .dtype = TD_Q8_0, .data = be, .n_rows = ROWS, .is_looked_up = true}; /* never read */
    td_weight_part small = {.dtype = TD_Q8_0, .data = zeros, .n_rows = SMALL};
    assert_int_equal(be->ops->weight_import(be, &part, 1, COLS, &w, NULL), TD_OK);
    assert_true(be->ops->kv_budget_bytes(be) > 0);
    assert_int_equal(be->ops->weight_import(be, &small, 1, SMALL, &w, NULL), TD_OK);
    program = one_linear(be, w);
    assert_int_equal(be->ops->compile(be, program, &compiled, &err), TD_OK);
    be->ops->discard(be, compiled);
    td_program_destroy(program);

    part.is_looked_up = false;
    assert_int_equal(be->ops->weight_import(be, &part, 1, COLS, &w, NULL), TD_OK);
    assert_int_equal(be->ops->kv_budget_bytes(be), 0);
    program = one_linear(be, w);
    assert_int_equal(be->ops->compile(be, program, &compiled, &err), TD_ERR_NOMEM);
    assert_string_equal(err.param, "cpu_exact");
    assert_non_null(strstr(err.message, "278528 MiB more are needed"));
    td_program_destroy(program);
    be->ops->destroy(be);
  }
  fx_int8_activations = false;
}

static void expect_refused(td_backend *be, td_weight_part part, uint32_t n_parts, uint64_t n_cols)
{
  td_weight_part parts[3] = {part, part, part};
  td_weight *w;
  td_error err = {0};
  assert_int_equal(be->ops->weight_import(be, parts, n_parts, n_cols, &w, &err), TD_ERR_MODEL);
  assert_true(strlen(err.message) > 10);
}

static void test_import_refuses_sizes_that_do_not_fit(void **state)
{
  td_backend *be = fx_backend("scalar", 1);
  uint8_t data[64] = {0};
  expect_refused(be, (td_weight_part){.dtype = TD_Q4_1, .data = data, .n_rows = 1}, 1, 33);
  expect_refused(be, (td_weight_part){.dtype = TD_Q4_K, .data = data, .n_rows = 1}, 1, 32);
  expect_refused(be, (td_weight_part){.dtype = TD_F32, .data = data, .n_rows = 1}, 1, 0);
  expect_refused(be, (td_weight_part){.dtype = TD_F32, .data = data, .n_rows = 0}, 1, 8);
  expect_refused(be, (td_weight_part){.dtype = TD_F32, .data = data, .n_rows = 1ull << 60}, 1, 8);
  expect_refused(be, (td_weight_part){.dtype = TD_F32, .data = data, .n_rows = 1}, 1, 1ull << 40);
  expect_refused(be, (td_weight_part){.dtype = (td_dtype)99, .data = data, .n_rows = 1}, 1, 32);
  expect_refused(be, (td_weight_part){.dtype = TD_F32, .data = data, .n_rows = 1}, 0, 32);
  be->ops->destroy(be);
  td_error err = {0};
  assert_int_equal(td_backend_create("tpu", &fx_config, &be, &err), TD_ERR_CONFIG);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_dtype_and_batch),
      cmocka_unit_test(test_parts_of_different_dtypes),
      cmocka_unit_test(test_embed_widens_rows),
      cmocka_unit_test(test_int8_every_type_and_batch),
      cmocka_unit_test(test_int8_largest_sums),
      cmocka_unit_test(test_int8_of_no_numbers),
      cmocka_unit_test(test_int8_without_memory),
      cmocka_unit_test(test_import_refuses_sizes_that_do_not_fit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
