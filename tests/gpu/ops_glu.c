/* See ops_glu.h. */
#include "ops_glu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops_harness.h"
#include "ops_watch.h"

typedef struct glu_inputs {
  uint32_t n_in, width;
  float *x, *w; /* gate, then up */
  double *want;
  td_weight *weight;
} glu_inputs;

static uint32_t n_glu_served;

static void glu_make(glu_inputs *g, uint32_t n, uint32_t n_in, uint32_t width)
{
  *g = (glu_inputs){n_in,
                    width,
                    random_values((size_t)n * n_in, 2 / sqrt(n_in)),
                    random_values((size_t)2 * width * n_in, 1),
                    malloc((size_t)n * width * sizeof(double)),
                    NULL};
  g->weight = device_weight(
      (td_weight_part[]){{.dtype = TD_F32, .data = g->w, .n_rows = width},
                         {.dtype = TD_F32, .data = g->w + (size_t)width * n_in, .n_rows = width}},
      2, n_in);
#pragma omp parallel for
  for (uint32_t t = 0; t < n; t++)
    for (uint32_t j = 0; j < width; j++) {
      const float *xt = g->x + (size_t)t * n_in, *gate = g->w + (size_t)j * n_in,
                  *up = gate + (size_t)width * n_in;
      double a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
      for (uint32_t k = 0; k < n_in; k++) {
        a += (double)xt[k] * gate[k];
        b += (double)xt[k] * up[k];
      }
      g->want[(size_t)t * width + j] = a / (1 + exp(-a)) * b;
    }
}

static void glu_free(glu_inputs *g) { free(g->x), free(g->w), free(g->want); }

/* Returns false if the backend has no such kernel for this number of rows. */
static bool run_glu(const glu_inputs *g, td_devptr x, td_devptr out)
{
  td_error err;
  td_outcome ignored;
  td_compiled *compiled;
  td_linear_swiglu_params p = {.weight = g->weight, .x = x, .out = out, .n_in = g->n_in, .width = g->width};
  td_op op = {.kind = TD_OP_LINEAR_SWIGLU, .linear_swiglu = p};
  if (be->ops->compile(be, &(td_program){.ops = &op, .n_ops = 1, .n_unsampled = 1}, &compiled, &err) != TD_OK)
    return false;
  td_backend_queue_step(be, compiled, NULL, plan);
  bool served = watch_wait(be, plan, &ignored, &err) == TD_OK;
  be->ops->discard(be, compiled);
  return served;
}

/* Rows from `first` on; NULL: not supported. Nothing may be written after the last row. */
static float *glu_run(const glu_inputs *g, uint32_t first, uint32_t n, const char *what)
{
  enum { GUARD_ROWS = 256 };
  size_t n_want = (size_t)n * g->width, n_all = n_want + (size_t)GUARD_ROWS * g->width;
  plan_tokens_only(n);
  td_devptr x = activations(g->x + (size_t)first * g->n_in, n, g->n_in),
            out = device_alloc(n_all * be->activation_bytes);
  if (!run_glu(g, x, out))
    return NULL;
  float *got = fetch(out, n_all, false);
  bool clean = true;
  for (size_t i = n_want; i < n_all; i++)
    clean &= got[i] == 0;
  expect(clean, what);
  n_glu_served++;
  return got;
}

static void test_glu(uint32_t n, uint32_t n_in, uint32_t width)
{
  char what[80], alike[120], strange[120];
  glu_inputs g;
  watch_case(rng_now(), "linear_swiglu n=%u n_in=%u width=%u", n, n_in, width);
  snprintf(what, sizeof what, "linear_swiglu n=%u n_in=%u width=%u", n, n_in, width);
  snprintf(alike, sizeof alike, "%s: other bits in a step of fewer", what);
  snprintf(strange, sizeof strange, "%s: NaN in its row alone", what);
  glu_make(&g, n, n_in, width);
  float *got = glu_run(&g, 0, n, what), *part = got ? glu_run(&g, n / 3, n - n / 3, what) : NULL;
  expect(got || !is_hopper(), what); /* all of these shapes are its kernel's */
  if (got)
    check(what, got, g.want, (size_t)n * width, eps_out);
  if (part) /* the order of a sum is one for all n */
    expect(memcmp(part, got + (size_t)(n / 3) * width, (size_t)(n - n / 3) * width * sizeof *got) == 0,
           alike);
  if (got) /* NaN appears in its own row, and in no other */
    g.x[(size_t)(n / 2) * n_in] = NAN;
  free(part);
  part = got ? glu_run(&g, 0, n, what) : NULL;
  if (part) {
    size_t row = (size_t)(n / 2) * width;
    bool nan = true;
    for (uint32_t j = 0; j < width; j++)
      nan &= isnan(part[row + j]);
    expect(nan && memcmp(part, got, row * sizeof *got) == 0 &&
               memcmp(part + row + width, got + row + width, (n - n / 2 - 1) * (size_t)width * sizeof *got) ==
                   0,
           strange);
  }
  glu_free(&g);
  free(got), free(part);
}

void test_no_glu(void)
{
  glu_inputs g;
  glu_make(&g, 150, 64, 64);
  float *got = glu_run(&g, 0, 150, "linear_swiglu, batch_invariant");
  expect(got == NULL, "linear_swiglu: not with batch_invariant");
  free(got);
  glu_free(&g);
}

void test_glus(test_size size)
{
  /* n, n_in, width. Few tokens: tall tiles of one warpgroup and of both, several per CTA. Many tokens, on 132
   * SMs: halves of tiles, whole ones, neighbouring ones, whole ones and halves, ... */
  static const uint32_t glus[][3] = {
      {195, 64, 64},    {40, 192, 14336},  {300, 192, 2240}, {14, 64, 2240},    {128, 128, 320},
      {384, 64, 5376},  {384, 64, 2560},   {195, 64, 8960},  {1000, 64, 128},   {257, 128, 320},
      {1024, 128, 64},  {70, 64, 19008},   {90, 128, 14336}, {100, 4096, 448},  {513, 64, 2944},
      {640, 2048, 192}, {1024, 576, 1536}, {17, 256, 8960},  {513, 4096, 1024}, {385, 64, 19008},
      {640, 256, 8960}, {128, 320, 14336}, {65, 64, 9024},   {33, 1024, 40000}};
  if (strcmp(be->ops->name, "cpu") == 0)
    return;
  for (size_t i = 0; i < (size == TEST_TINY ? 5 : size == TEST_SMALL ? 13 : sizeof glus / sizeof *glus); i++)
    test_glu(glus[i][0], glus[i][1], glus[i][2]);
  printf("linear_swiglu: served %u times\n", n_glu_served);
}
