/* See ops_pointwise.h. */
#include "ops_pointwise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/dummy.h"
#include "ops_harness.h"

void test_rmsnorm(uint32_t n, uint32_t width)
{
  char what[80];
  float *x = random_values((size_t)n * width, 1), *w = random_values(width, 1);
  double *want = malloc((size_t)n * width * sizeof *want);
  for (uint32_t t = 0; t < n; t++) {
    double sum = 0;
    for (uint32_t i = 0; i < width; i++) {
      double v = x[t * width + i];
      want[t * width + i] = v;
      sum += v * v;
    }
    for (uint32_t i = 0; i < width; i++)
      want[t * width + i] *= w[i] / sqrt(sum / width + 1e-5);
  }
  plan_tokens_only(n);
  td_devptr dx = activations(x, n, width);
  td_devptr out = device_alloc((size_t)n * width * be->activation_bytes);
  td_rmsnorm_params p = {.x = dx, .weight = device_f32(w, width), .out = out, .width = width, .eps = 1e-5f};
  run_ops(&(td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p}, 1);
  float *got = fetch(out, (size_t)n * width, false);
  snprintf(what, sizeof what, "rmsnorm n=%u width=%u", n, width);
  check(what, got, want, (size_t)n * width, 2 * eps_out);
  free(x), free(w), free(want), free(got);
}

/* Centred, added to the output, and for the first half of longer rows. */
void test_rmsnorm_forms(uint32_t n, uint32_t width, bool centred, bool add, bool in_place)
{
  char what[80];
  uint32_t stride = in_place ? 2 * width : width;
  size_t total = (size_t)n * stride;
  float *x = random_values(total, 1), *w = random_values(width, 1), *held = random_values(total, 1);
  double *want = malloc(total * sizeof *want);
  for (size_t i = 0; i < total; i++)
    want[i] = in_place ? x[i] : held[i];
  for (uint32_t t = 0; t < n; t++) {
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < width; i++)
      sum += x[t * stride + i];
    double mean = centred ? sum / width : 0;
    for (uint32_t i = 0; i < width; i++)
      squares += (x[t * stride + i] - mean) * (x[t * stride + i] - mean);
    for (uint32_t i = 0; i < width; i++)
      want[t * stride + i] =
          (x[t * stride + i] - mean) * w[i] / sqrt(squares / width + 1e-5) + (add ? want[t * stride + i] : 0);
  }
  plan_tokens_only(n);
  td_devptr dx = activations(x, n, stride), out = in_place ? dx : activations(held, n, stride);
  td_rmsnorm_params p = {.x = dx,
                         .weight = device_f32(w, width),
                         .out = out,
                         .width = width,
                         .eps = 1e-5f,
                         .stride = in_place ? stride : 0,
                         .centred = centred,
                         .add = add};
  run_ops(&(td_op){.kind = TD_OP_RMSNORM, .rmsnorm = p}, 1);
  float *got = fetch(out, total, false);
  snprintf(what, sizeof what, "rmsnorm n=%u width=%u%s%s%s", n, width, centred ? " centred" : "",
           add ? " added" : "", in_place ? " in place" : "");
  check(what, got, want, total, 4 * eps_out);
  free(x), free(w), free(held), free(want), free(got);
}

/* Dummy weights have the same bits everywhere: read back through the embedding. */
void test_dummy(uint32_t vocab, uint32_t width)
{
  char what[80];
  td_weight_part part = {.dtype = TD_BF16, .n_rows = vocab, .seed = 77};
  double *want = malloc((size_t)vocab * width * sizeof *want);
  plan_tokens_only(vocab);
  for (uint32_t i = 0; i < vocab; i++) {
    plan->token_ids[i] = (int32_t)i;
    for (uint32_t k = 0; k < width; k++)
      want[(size_t)i * width + k] = td_bf16_to_f32(td_dummy_bf16(77, (uint64_t)i * width + k));
  }
  td_devptr out = device_alloc((size_t)vocab * width * be->activation_bytes);
  td_embed_params p = {.weight = device_weight(&part, 1, width), .out = out, .width = width};
  run_ops(&(td_op){.kind = TD_OP_EMBED, .embed = p}, 1);
  float *got = fetch(out, (size_t)vocab * width, false);
  snprintf(what, sizeof what, "dummy %u x %u", vocab, width);
  check(what, got, want, (size_t)vocab * width, 0);
  free(want), free(got);
}

/* Rows of a table, in any order and more than once. */
void test_embed(uint32_t n, uint32_t vocab, uint32_t width)
{
  char what[80];
  float *table = random_values((size_t)vocab * width, 1);
  double *want = malloc((size_t)n * width * sizeof *want);
  td_weight *weight =
      device_weight(&(td_weight_part){.dtype = TD_F32, .data = table, .n_rows = vocab}, 1, width);
  plan_tokens_only(n);
  for (uint32_t t = 0; t < n; t++) {
    plan->token_ids[t] = t == 0 ? (int32_t)vocab - 1 : (int32_t)(rng() % vocab);
    for (uint32_t k = 0; k < width; k++)
      want[(size_t)t * width + k] = table[(size_t)plan->token_ids[t] * width + k];
  }
  td_devptr out = device_alloc((size_t)n * width * be->activation_bytes);
  td_embed_params p = {.weight = weight, .out = out, .width = width};
  run_ops(&(td_op){.kind = TD_OP_EMBED, .embed = p}, 1);
  float *got = fetch(out, (size_t)n * width, false);
  snprintf(what, sizeof what, "embed n=%u of %u x %u", n, vocab, width);
  check(what, got, want, (size_t)n * width, 0);
  free(table), free(want), free(got);
}

void test_swiglu(uint32_t n, uint32_t width)
{
  char what[80];
  float *x = random_values((size_t)n * 2 * width, 2);
  double *want = malloc((size_t)n * width * sizeof *want);
  for (uint32_t t = 0; t < n; t++)
    for (uint32_t j = 0; j < width; j++) {
      double g = x[(size_t)t * 2 * width + j], u = x[(size_t)t * 2 * width + width + j];
      want[(size_t)t * width + j] = g / (1 + exp(-g)) * u;
    }
  plan_tokens_only(n);
  td_devptr dx = activations(x, n, 2 * width), out = device_alloc((size_t)n * width * be->activation_bytes);
  run_ops(&(td_op){.kind = TD_OP_SWIGLU, .swiglu = {dx, out, width}}, 1);
  float *got = fetch(out, (size_t)n * width, false);
  snprintf(what, sizeof what, "swiglu n=%u width=%u", n, width);
  check(what, got, want, (size_t)n * width, eps_out);
  free(x), free(want), free(got);
}
