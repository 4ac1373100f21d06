/* Linears: whole weights and weights in parts, with biases, of few rows and many; and the batch rule. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops_harness.h"
#include "ops_linear.h"
#include "ops_watch.h"

/* A weight, made once for all row counts that use it, because on a GPU that takes longer than the GEMM. */
typedef struct product {
  uint32_t n_in, n_out, n_parts, outs[TD_WEIGHT_PARTS_MAX];
  float *w, *bias; /* [n_out, n_in]; NULL: none */
  td_weight *weight;
} product;

static product products[100]; /* of one backend: see forget_products */
static size_t n_products;

void forget_products(void)
{
  while (n_products > 0) {
    product *p = &products[--n_products];
    free(p->w), free(p->bias);
  }
}

static void make_product(product *p, uint32_t n_in, const uint32_t *outs, uint32_t n_parts, bool bias)
{
  td_weight_part parts[TD_WEIGHT_PARTS_MAX];
  *p = (product){.n_in = n_in, .n_parts = n_parts};
  memcpy(p->outs, outs, n_parts * sizeof *outs);
  for (uint32_t i = 0; i < n_parts; i++)
    p->n_out += outs[i];
  p->w = random_values((size_t)p->n_out * n_in, 1);
  p->bias = bias ? random_values(p->n_out, 1) : NULL;
  for (uint32_t i = 0, j0 = 0; i < n_parts; j0 += outs[i++])
    parts[i] = (td_weight_part){.dtype = TD_F32,
                                .data = p->w + (size_t)j0 * n_in,
                                .n_rows = outs[i],
                                .bias = bias ? p->bias + j0 : NULL};
  p->weight = device_weight(parts, n_parts, n_in);
}

static const product *product_of(uint32_t n_in, const uint32_t *outs, uint32_t n_parts, bool bias)
{
  for (size_t i = 0; i < n_products; i++)
    if (products[i].n_in == n_in && products[i].n_parts == n_parts && (products[i].bias != NULL) == bias &&
        memcmp(products[i].outs, outs, n_parts * sizeof *outs) == 0)
      return &products[i];
  if (n_products == sizeof products / sizeof *products)
    forget_products();
  make_product(&products[n_products], n_in, outs, n_parts, bias);
  return &products[n_products++];
}

static double dot(const float *x, const float *w, uint32_t n)
{
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (uint32_t k = 0; k < n; k++)
    sum += (double)x[k] * (double)w[k];
  return sum;
}

static double *want_linear(const product *p, const float *x, uint32_t n)
{
  double *want = malloc((size_t)n * p->n_out * sizeof *want);
#pragma omp parallel for collapse(2) schedule(static)
  for (uint32_t j = 0; j < p->n_out; j++)
    for (uint32_t t = 0; t < n; t++)
      want[(size_t)t * p->n_out + j] =
          dot(x + (size_t)t * p->n_in, p->w + (size_t)j * p->n_in, p->n_in) + (p->bias ? p->bias[j] : 0);
  return want;
}

void test_linear(uint32_t n, uint32_t n_in, const uint32_t *outs, uint32_t n_parts, bool bias, bool f32)
{
  char what[120];
  const product *p = product_of(n_in, outs, n_parts, bias);
  size_t n_all = (size_t)n * p->n_out;
  watch_case(rng_now(), "linear n=%u n_in=%u n_out=%u f32=%d", n, n_in, p->n_out, f32);
  float *x = random_values((size_t)n * n_in, 1), *held = random_values(n_all, 100);
  double *want = want_linear(p, x, n);
  plan_tokens_only(n);
  td_devptr dx = activations(x, n, n_in);
  size_t out_bytes = n_all * (f32 ? 4 : be->activation_bytes);
  td_devptr out = device_alloc(out_bytes),
            again = f32 ? device_f32(held, n_all) : activations(held, n, p->n_out);
  td_devptr sum = f32 ? device_f32(held, n_all) : activations(held, n, p->n_out);
  td_linear_params once = {p->weight, dx, out, n_in, p->n_out, bias, f32, false}, added = once, twice = once;
  added.out = sum;
  added.add = true;
  twice.out = again;
  const td_op ops[] = {{.kind = TD_OP_LINEAR, .linear = once},
                       {.kind = TD_OP_LINEAR, .linear = added},
                       {.kind = TD_OP_LINEAR, .linear = twice}};
  run_ops(ops, 3);
  float *got = fetch(out, n_all, f32), *got_again = fetch(again, n_all, f32),
        *got_sum = fetch(sum, n_all, f32);
  snprintf(what, sizeof what, "linear n=%u n_in=%u n_out=%u parts=%u bias=%d f32=%d", n, n_in, p->n_out,
           n_parts, bias, f32);
  check(what, got, want, n_all, f32 ? 1e-5 : eps_out);
  for (size_t i = 0; i < n_all; i++)
    want[i] += held[i];
  strcat(what, ", added");
  check(what, got_sum, want, n_all, f32 ? 1e-5 : eps_out);
  bool same = memcmp(got, got_again, n_all * sizeof *got) == 0;
  n_passed += same;
  n_failed += !same;
  if (!same)
    printf("FAIL %s: other bits the second time, to where something was\n", what);
  free(x), free(held), free(want), free(got), free(got_again), free(got_sum);
}

/* Decode steps: every row count; n_in and n_out that are not whole tiles, one tile and many. */
void test_few_rows(bool small)
{
  static const uint32_t ins[] = {64, 96, 192, 1088, 2568}, outs[] = {1, 37, 129, 130, 1004};
  for (uint32_t n = 1; n <= MAX_ROWS; n += small ? 9 : 1)
    for (size_t i = 0; i < (small ? 3 : 5); i++) {
      uint32_t k = (n + (uint32_t)i) % 5;
      test_linear(n, ins[i], &outs[k], 1, n % 2 == 0, false);
      test_linear(n, ins[i], &outs[(k + 2) % 5], 1, false, true);
    }
  test_linear(8, 64, (const uint32_t[]){45000}, 1, true,
              false); /* more tiles for each CTA of an H200 than it has slots */
  if (small)
    return;
  test_linear(1, 4096, (const uint32_t[]){4096, 1024, 1024}, 3, false,
              false); /* more tiles than multiprocessors */
  test_linear(4, 4416, (const uint32_t[]){9001}, 1, true,
              false); /* and more parts than slots, of tiles of each height */
  test_linear(6, 1088, (const uint32_t[]){10000}, 1, true, false);
  test_linear(7, 14400, (const uint32_t[]){1000}, 1, true, false);
  test_linear(1, 14400, (const uint32_t[]){1000}, 1, false, false);
  test_linear(2, 14336, (const uint32_t[]){4096}, 1, false, false);
  test_linear(3, 4160, (const uint32_t[]){2304}, 1, false, true);
  test_linear(7, 14400, (const uint32_t[]){1990}, 1, true, false);
  test_linear(5, 4096, (const uint32_t[]){6144}, 1, false, false);
  test_linear(8, 14336, (const uint32_t[]){4096}, 1, true, false);
  test_linear(12, 14336, (const uint32_t[]){4096}, 1, true, false); /* the ring of more rows */
  test_linear(16, 1024, (const uint32_t[]){9000, 9000}, 2, true, false);
  test_linear(29, 576, (const uint32_t[]){20001}, 1, false, true);
  test_linear(64, 256, (const uint32_t[]){40004}, 1, false, true);
}

td_op linear_op(const td_weight *w, td_devptr x, td_devptr out, uint32_t n_in, uint32_t n_out)
{
  return (td_op){.kind = TD_OP_LINEAR,
                 .linear = {.weight = w, .x = x, .out = out, .n_in = n_in, .n_out = n_out}};
}

/* ---- the batch rule: a row's bits do not depend on what else is in its step ---- */

void test_linear_alone(uint32_t n_in, uint32_t n_out, bool f32, bool add)
{
  enum { MOST = 300 };
  static const uint32_t ns[] = {MOST, 1, 2, 5, 8, 9, 16, 33, 64, 100, 257};
  char what[100];
  float *x = random_values((size_t)MOST * n_in, 1), *w = random_values((size_t)n_out * n_in, 1), *all = NULL;
  float *held = random_values((size_t)MOST * n_out, 30);
  td_weight *weight = device_weight(&(td_weight_part){.dtype = TD_F32, .data = w, .n_rows = n_out}, 1, n_in);
  for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
    uint32_t n = ns[i], first = (MOST - n) / 2;
    plan_tokens_only(n);
    td_devptr out =
        f32 ? device_alloc((size_t)n * n_out * 4) : activations(held + (size_t)first * n_out, n, n_out);
    td_op op = linear_op(weight, activations(x + (size_t)first * n_in, n, n_in), out, n_in, n_out);
    op.linear.out_f32 = f32;
    op.linear.add = add;
    run_ops(&op, 1);
    float *got = fetch(out, (size_t)n * n_out, f32);
    snprintf(what, sizeof what, "batch rule: linear n=%u n_in=%u n_out=%u add=%d", n, n_in, n_out, add);
    if (all) {
      expect(memcmp(got, all + (size_t)first * n_out, (size_t)n * n_out * sizeof *got) == 0, what);
      free(got);
    } else {
      all = got;
    }
  }
  free(x), free(w), free(held), free(all);
}
