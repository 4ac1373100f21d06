/* What kind of decoder a model is: the parameters of the one decoder in forward.c.
 *
 * Llama 2/3, SmolLM2, TinyLlama, Yi, Mistral, Qwen2/2.5 (q/k/v biases) and Qwen3 (q/k norm) differ only in
 * these numbers. Anything else is refused by name. */
#ifndef TD_MODELS_MODEL_DESC_H
#define TD_MODELS_MODEL_DESC_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/kernels.h"
#include "models/weights/weights.h"

enum {
  TD_EOS_IDS_MAX = 64,
  TD_HEAD_DIM_MAX = 256,
  TD_LAYERS_MAX = 1024
}; /* limits: model_head_dim, model_layers */

typedef struct td_model_desc {
  char arch[64]; /* "llama", "mistral", "qwen2", "qwen3" */
  uint32_t n_layers, width, ffn_width;
  uint32_t n_heads, n_kv_heads, head_dim;
  uint32_t vocab;
  uint32_t context_tokens;                /* trained context, scaling included */
  uint32_t window_tokens;                 /* sliding window, 0 = none */
  uint64_t no_window[TD_LAYERS_MAX / 64]; /* a bit a layer: it attends to all keys all the same */
  float norm_eps;
  bool qkv_bias, o_bias, mlp_bias;
  bool qk_norm;
  bool tied_embeddings;

  td_rope_style rope_style;
  uint32_t rotary_dim;
  float rope_attn_factor;
  float rope_inv_freq[TD_HEAD_DIM_MAX / 2]; /* scaling applied (linear, llama3, yarn) */

  uint32_t n_eos_ids;
  int32_t eos_ids[TD_EOS_IDS_MAX]; /* of all files: generation_config.json and config.json, or GGUF's eos, eot
                                      and eom */

  /* generation_config.json's defaults for absent request fields; negative or 0 = not given */
  float default_temperature, default_top_p, default_min_p; /* < 0: not given */
  int32_t default_top_k;                                   /* < 0: not given */
  char unserved_defaults[512]; /* "a, b": what the files ask of every answer and is not served */
} td_model_desc;

TD_MUST_CHECK td_status td_model_desc_read(const td_model_files *files, td_model_desc *out, td_error *err);

struct td_tokenizer;
/* Adds to eos_ids what the tokenizer knows of ends. */
TD_MUST_CHECK td_status td_model_end_tokens(const struct td_tokenizer *t, td_model_desc *d, td_error *err);

/* 0: the layer attends to all keys. */
static inline uint32_t td_model_layer_window(const td_model_desc *d, uint32_t layer)
{
  return d->no_window[layer / 64] >> layer % 64 & 1 ? 0 : d->window_tokens;
}

/* Parameters in all weights, for the log line. */
uint64_t td_model_desc_parameter_count(const td_model_desc *d);

#endif
