/* See device.h. */
#include "capacity/device.h"

#include <stdio.h>
#include <string.h>

#include "loadgen/shapes.h"
#include "models/model.h"

/* One H200: memory as its driver reports it, the share that the daemon uses by default, and room for a
 * step's activations. */
static const double H200_BYTES = 139.8 * 1073741824.0, MEMORY_SHARE = 0.90, WORKSPACE_BYTES = 1073741824.0;

/* The types of the CUDA backend. */
static const td_dtype WEIGHTS = TD_BF16, KV = TD_BF16;

static uint64_t kv_tokens(const td_device *d)
{
  double n = d->tensor_parallel;
  double room = n * (d->memory_bytes * MEMORY_SHARE - WORKSPACE_BYTES) - d->weight_bytes;
  return room > 0 ? (uint64_t)(room / d->kv_token_bytes) : 0;
}

static void set_sizes(td_device *d)
{
  td_floor_model f = td_floor_make(&d->shape, 0, 0);
  double embedding = d->shape.tied_embeddings ? 0 : f.head_parameters;
  td_kv_spec kv = td_model_kv_spec(&d->shape, KV, 1, 1);
  d->weight_bytes = td_dtypes[WEIGHTS].block_bytes * (f.layer_parameters + f.head_parameters + embedding);
  d->kv_token_bytes = (double)td_kv_token_bytes(&kv);
}

/* Scales GEMMs by parameters, decode attention by KV bytes, prompt attention by heads, and the constant of
 * hybrid steps by layers, as td_cost_guess does. */
static void scale_cost(td_cost_model *m, const td_device *from, const td_device *to)
{
  td_floor_model a = td_floor_make(&from->shape, 0, 0), b = td_floor_make(&to->shape, 0, 0);
  double products = (b.layer_parameters + b.head_parameters) / (a.layer_parameters + a.head_parameters);
  double kv = to->kv_token_bytes / from->kv_token_bytes, pairs = b.attention_flop / a.attention_flop;
  for (uint32_t i = 0; i < m->n_points; i++)
    m->tokens_us[i] *= products;
  m->logits_us_per_row *= products;
  m->hybrid_us *= (double)to->shape.n_layers / from->shape.n_layers;
  m->decode_us_per_kv_token *= kv;
  m->hybrid_us_per_kv_token *= kv;
  m->prefill_us_per_kv_token *= kv;
  m->prefill_us_per_short_chunk_key *= kv;
  m->prefill_us_per_pair *= pairs;
}

td_status td_device_h200(const char *model, td_device *out, td_error *err)
{
  td_device measured = {.cost = td_cost_h200_llama3_8b, .memory_bytes = H200_BYTES, .tensor_parallel = 1};
  TD_TRY(td_shapes_find("llama3-8b", &measured.shape, err));
  set_sizes(&measured);
  *out = measured;
  TD_TRY(td_shapes_find(model, &out->shape, err));
  set_sizes(out);
  if (strcmp(model, "llama3-8b") != 0)
    scale_cost(&out->cost, &measured, out);
  out->n_kv_tokens = kv_tokens(out);
  snprintf(out->name, sizeof out->name, "H200, %s", model);
  return TD_OK;
}

void td_device_set_memory(td_device *d, double bytes)
{
  d->memory_bytes = bytes;
  d->n_kv_tokens = kv_tokens(d);
}

double td_device_all_reduce_us(double n_rows, uint32_t width)
{
  static const double rows[] = {1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  static const double us[] = {9.8, 10.4, 11.6, 13.0, 17.2, 29.6, 34.7, 48.0, 76.9, 138}; /* 4096 wide */
  enum { N = sizeof rows / sizeof *rows };
  double r = n_rows * width / 4096;
  if (r <= rows[0])
    return us[0];
  int i = 0;
  while (i < N - 2 && rows[i + 1] < r)
    i++;
  return us[i] + (r - rows[i]) * (us[i + 1] - us[i]) / (rows[i + 1] - rows[i]);
}

td_device td_device_tp2(const td_device *one)
{
  td_device d = *one;
  td_cost_model *m = &d.cost;
  for (uint32_t i = 0; i < m->n_points; i++)
    m->tokens_us[i] =
        m->tokens_us[i] / 2 + 2.0 * d.shape.n_layers * td_device_all_reduce_us(m->tokens[i], d.shape.width);
  m->logits_us_per_row /= 2;
  m->decode_us_per_kv_token /= 2;
  m->hybrid_us_per_kv_token /= 2;
  m->prefill_us_per_pair /= 2;
  m->prefill_us_per_kv_token /= 2;
  m->prefill_us_per_short_chunk_key /= 2;
  d.tensor_parallel = 2;
  d.n_kv_tokens = one->memory_bytes > 0 ? kv_tokens(&d) : 2 * one->n_kv_tokens;
  snprintf(d.name, sizeof d.name, "2 x %.80s", one->name);
  return d;
}
