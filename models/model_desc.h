/* What kind of decoder a model is: the parameters of the one decoder in forward.c.
 *
 * Every served family (the tables in desc_config.c and desc_gguf.c) differs from Llama only in these
 * parameters. Models that differ in anything else are refused, with a message that names the difference. */
#ifndef TD_MODELS_MODEL_DESC_H
#define TD_MODELS_MODEL_DESC_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "config/limits.h"
#include "kernels/kernels.h"
#include "models/weights/weights.h"

/* How a layer combines its two parts, attention and MLP, with its norms to update x. */
typedef enum td_block_form {
  TD_BLOCK_PRE_NORM,  /* x += part(norm(x)), one part after the other */
  TD_BLOCK_POST_NORM, /* x += norm(part(x)): OLMo-2 */
  TD_BLOCK_PARALLEL,  /* x += attention(norm(x)) + MLP(norm(x)): Command-R */
} td_block_form;

/* Naming schemes for a model's tensors; roles.c has the names. */
typedef enum td_tensor_names {
  TD_NAMES_HF,
  TD_NAMES_GGUF,
  TD_NAMES_HF_TEXT,      /* the text part of a wrapper: model.language_model.layers */
  TD_NAMES_HF_TEXT_OLD,  /* the same in files of older wrappers: language_model.model.layers */
  TD_NAMES_HF_TEXT_SMOL, /* the same in Idefics and SmolVLM: model.text_model.layers */
  TD_NAMES_HF_BASE,      /* a model saved without its head: layers */
} td_tensor_names;

typedef enum td_rope_kind {
  TD_ROPE_PLAIN,
  TD_ROPE_LINEAR,
  TD_ROPE_LLAMA3,
  TD_ROPE_YARN,
  TD_ROPE_LONGROPE, /* one table of divisors up to the original context, another beyond it */
  TD_ROPE_DYNAMIC,  /* NTK: beyond the original context the base grows with the context */
  TD_ROPE_NONE,     /* q and k are not rotated */
} td_rope_kind;

/* Rotary embedding as the files state it; 0 for whatever they leave out. */
typedef struct td_rope_spec {
  td_rope_kind kind;
  double theta;                             /* base of the frequencies */
  double factor;                            /* how many times longer the context became; all but plain */
  double original_context;                  /* tokens before that; all but plain and linear */
  double low_freq, high_freq;               /* llama3 */
  double beta_fast, beta_slow;              /* yarn */
  double mscale, mscale_all;                /* yarn */
  double attn_factor;                       /* yarn and longrope; 0: derived from factor */
  bool exact_range;                         /* yarn: the corrected range is not rounded to whole dimensions */
  bool has_divisors;                        /* the file has GGUF's rope_freqs.weight */
  float divisors[TD_HEAD_DIM_MAX / 2];      /* one per frequency; longrope: up to the original context */
  float long_divisors[TD_HEAD_DIM_MAX / 2]; /* longrope: beyond the original context */
} td_rope_spec;

typedef struct td_model_desc {
  char arch[64]; /* model_type or general.architecture */
  uint32_t n_layers, width, ffn_width;
  uint32_t n_heads, n_kv_heads, head_dim;
  uint32_t vocab;
  uint32_t context_tokens;                /* trained context, including scaling */
  uint32_t window_tokens;                 /* sliding window, 0 = none */
  uint64_t no_window[TD_LAYERS_MAX / 64]; /* one bit per layer: it attends to all keys, without a window */
  float norm_eps;
  bool qkv_bias, o_bias, mlp_bias;
  bool qk_norm;
  bool tied_embeddings;
  bool headless; /* the engine wants vectors and no logits, so no output matrix is loaded */

  td_block_form block_form;
  bool layer_norm;   /* norms also subtract the mean: Command-R */
  bool wide_qk_norm; /* one norm over all heads together instead of one per head: OLMo-2 */
  td_tensor_names names;
  bool is_wrapped;               /* the files also hold tensors of other parts, which are ignored */
  bool fused_qkv, fused_gate_up; /* stored as one matrix: Phi-3 */

  /* Scaling factors of Granite, MiniCPM and Command-R. 0 means 1, and for attn_scale 1 / sqrt(head_dim). */
  float embed_scale, residual_scale, logit_scale, attn_scale;

  td_rope_style rope_style;
  uint32_t rotary_dim; /* how many elements of a head are rotated, from its first on */
  td_rope_spec rope;
  float rope_attn_factor;
  float rope_inv_freq[TD_HEAD_DIM_MAX / 2]; /* scaling applied, for the context that is served */
  uint64_t alt_rope[TD_LAYERS_MAX / 64];    /* one bit per layer: it uses alt_inv_freq, with no factor */
  float alt_inv_freq[TD_HEAD_DIM_MAX / 2];

  uint32_t n_eos_ids;
  int32_t eos_ids[TD_EOS_IDS_MAX]; /* from all files: generation_config.json and config.json, or GGUF's eos,
                                      eot and eom */

  /* The files' defaults for request fields that are absent. */
  float default_temperature, default_top_p, default_min_p; /* < 0: not given */
  int32_t default_top_k;                                   /* < 0: not given */
  float default_repetition_penalty;                        /* 0: not given */
  char unserved_defaults[512]; /* "a, b": keys of sampling defaults that the files set and we do not serve */
} td_model_desc;

TD_MUST_CHECK td_status td_model_desc_read(const td_model_files *files, td_model_desc *out, td_error *err);

/* Makes the frequencies again for a context of `tokens`, because longrope and dynamic scaling depend on how
 * long texts may become. Call before the model is loaded. path is used in messages only. */
TD_MUST_CHECK td_status td_model_desc_set_context(td_model_desc *d, uint32_t tokens, const char *path,
                                                  td_error *err);

struct td_tokenizer;
/* Adds to eos_ids the end tokens that the tokenizer knows. */
TD_MUST_CHECK td_status td_model_end_tokens(const struct td_tokenizer *t, td_model_desc *d, td_error *err);

/* 0: the layer attends to all keys. */
static inline uint32_t td_model_layer_window(const td_model_desc *d, uint32_t layer)
{
  return d->no_window[layer / 64] >> layer % 64 & 1 ? 0 : d->window_tokens;
}

static inline bool td_model_layer_has_alt_rope(const td_model_desc *d, uint32_t layer)
{
  return d->alt_rope[layer / 64] >> layer % 64 & 1;
}

static inline bool td_model_has_alt_rope(const td_model_desc *d)
{
  for (uint32_t i = 0; i < TD_LAYERS_MAX / 64; i++)
    if (d->alt_rope[i])
      return true;
  return false;
}

/* Number of parameters in all weights, for the log line. */
uint64_t td_model_desc_parameter_count(const td_model_desc *d);

#endif
