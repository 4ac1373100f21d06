/* See shapes.h. The formulas are the roofline's: max(bytes / bandwidth, operations / rate). */
#include "loadgen/shapes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct shape {
  const char *name;
  uint32_t n_layers, width, ffn_width, n_heads, n_kv_heads, head_dim, vocab;
  bool tied, qkv_bias, qk_norm;
  float rope_theta;
} shape;

static const shape shapes[] = {
    {"llama3-8b", 32, 4096, 14336, 32, 8, 128, 128256, false, false, false, 500000},
    {"llama2-7b", 32, 4096, 11008, 32, 32, 128, 32000, false, false, false, 10000},
    {"mistral-7b", 32, 4096, 14336, 32, 8, 128, 32000, false, false, false, 10000},
    {"yi-6b", 32, 4096, 11008, 32, 4, 128, 64000, false, false, false, 5000000},
    {"qwen2.5-7b", 28, 3584, 18944, 28, 4, 128, 152064, false, true, false, 1000000},
    {"qwen3-8b", 36, 4096, 12288, 32, 8, 128, 151936, false, false, true, 1000000},
    {"phi3-mini", 32, 3072, 8192, 32, 32, 96, 32064, false, false, false, 10000},
    {"llama3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, true, false, false, 500000},
    {"tinyllama", 22, 2048, 5632, 32, 4, 64, 32000, false, false, false, 10000},
    {"qwen2.5-0.5b", 24, 896, 4864, 14, 2, 64, 151936, true, true, false, 1000000},
    {"smollm2", 30, 576, 1536, 9, 3, 64, 49152, true, false, false, 100000},
    {"tiny", 2, 256, 512, 4, 2, 64, 2048, true, false, false, 10000},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, SHAPE_CONTEXT = 131072 };

const char *td_shapes_names(void)
{
  static char text[256];
  size_t at = 0;
  for (int i = 0; i < N_SHAPES; i++)
    at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i ? ", " : "", shapes[i].name);
  return text;
}

td_status td_shapes_find(const char *name, td_model_desc *out, td_error *err)
{
  for (int i = 0; i < N_SHAPES; i++) {
    const shape *s = &shapes[i];
    if (strcmp(s->name, name) != 0)
      continue;
    *out = (td_model_desc){.n_layers = s->n_layers,
                           .width = s->width,
                           .ffn_width = s->ffn_width,
                           .n_heads = s->n_heads,
                           .n_kv_heads = s->n_kv_heads,
                           .head_dim = s->head_dim,
                           .vocab = s->vocab,
                           .context_tokens = SHAPE_CONTEXT,
                           .norm_eps = 1e-5f,
                           .tied_embeddings = s->tied,
                           .qkv_bias = s->qkv_bias,
                           .qk_norm = s->qk_norm,
                           .rope_style = TD_ROPE_HALVES,
                           .rotary_dim = s->head_dim,
                           .rope_attn_factor = 1};
    snprintf(out->arch, sizeof out->arch, "%s", s->qk_norm ? "qwen3" : s->qkv_bias ? "qwen2" : "llama");
    for (uint32_t k = 0; k < s->head_dim / 2; k++)
      out->rope_inv_freq[k] = powf(s->rope_theta, -2.0f * (float)k / (float)s->head_dim);
    return TD_OK;
  }
  return td_fail(err, TD_ERR_CONFIG, "no shape '%s': %s", name, td_shapes_names());
}

/* ---- floors ---- */

td_floor_model td_floor_make(const td_model_desc *d, double weight_bytes, double kv_bytes_per_token)
{
  double q = (double)d->n_heads * d->head_dim, kv = (double)d->n_kv_heads * d->head_dim, width = d->width;
  double layer = width * (q + 2 * kv) + q * width + 3 * width * d->ffn_width;
  return (td_floor_model){.layer_parameters = layer * d->n_layers,
                          .head_parameters = width * d->vocab,
                          .weight_bytes = weight_bytes,
                          .kv_bytes_per_token = kv_bytes_per_token,
                          .attention_flop = 4 * q * d->n_layers};
}

/* n_tokens go through the layers and n_logits through the head. The weights are read once. */
static double linears_s(const td_floor_model *m, const td_ceiling *c, double n_tokens, double n_logits)
{
  double flop = 2 * (m->layer_parameters * n_tokens + m->head_parameters * n_logits);
  return fmax(m->weight_bytes / c->bytes_per_s, flop / c->flop_per_s);
}

double td_floor_decode_s(const td_floor_model *m, const td_ceiling *c, uint32_t batch, double context_tokens)
{
  return td_floor_hybrid_s(m, c, 0, 0, batch, context_tokens);
}

double td_floor_prefill_s(const td_floor_model *m, const td_ceiling *c, double prompt_tokens)
{
  double flop = 2 * (m->layer_parameters * prompt_tokens + m->head_parameters) +
                m->attention_flop * prompt_tokens * prompt_tokens / 2;
  return fmax(m->weight_bytes / c->bytes_per_s, flop / c->flop_per_s);
}

double td_floor_hybrid_s(const td_floor_model *m, const td_ceiling *c, double chunk, double chunk_context,
                         uint32_t batch, double context_tokens)
{
  double pairs = chunk * (chunk_context - chunk) + chunk * chunk / 2;
  double attention_s = fmax(m->attention_flop * pairs / c->flop_per_s,
                            batch * context_tokens * m->kv_bytes_per_token / c->bytes_per_s);
  return linears_s(m, c, chunk + batch, batch + (chunk > 0)) + attention_s;
}
