/* Internal to models/: the loaded model. model.c fills it; forward.c writes its program. */
#ifndef TD_MODELS_MODEL_INTERNAL_H
#define TD_MODELS_MODEL_INTERNAL_H

#include "models/model.h"

typedef struct td_model_layer {
  td_devptr attn_norm, ffn_norm;         /* f32 [width], or none */
  td_devptr attn_out_norm, ffn_out_norm; /* f32 [width], or none */
  td_devptr q_norm, k_norm;              /* f32 [head_dim], or one factor per element of all heads, or none */
  td_weight *qkv;                        /* [q | k | v, width] */
  td_weight *o;                          /* [width, n_heads * head_dim] */
  td_weight *gate_up;                    /* [gate | up, width] */
  td_weight *down;                       /* [width, ffn_width] */
} td_model_layer;

/* Offsets into one allocation. Activations are [max_tokens, ...], and those named last_* [max_logits, ...]. A
 * headless model has no last_* buffers and no logits. */
typedef struct td_workspace {
  size_t x;         /* the residual stream [width] */
  size_t h;         /* normalised x [width] */
  size_t qkv;       /* [(n_heads + 2 n_kv_heads) * head_dim] */
  size_t attn;      /* [n_heads * head_dim] */
  size_t gate_up;   /* [2 * ffn_width] */
  size_t act;       /* [ffn_width] */
  size_t last_x;    /* [width] */
  size_t last_attn; /* [n_heads * head_dim] */
  size_t logits;    /* f32 [max_logits, vocab] */
  size_t bytes;
} td_workspace;

td_workspace td_workspace_lay_out(const td_model_desc *d, uint32_t activation_bytes, uint32_t max_tokens,
                                  uint32_t max_logits);

struct td_model {
  td_model_desc desc;
  td_backend *be; /* borrowed */
  uint32_t max_tokens, max_logits;
  td_weight *embed, *head; /* head is embed if tied */
  td_devptr out_norm;      /* f32 [width] */
  td_devptr head_norm;     /* the same, times logit_scale */
  td_devptr inv_freq;      /* f32 [rotary_dim / 2] */
  td_devptr alt_inv_freq;
  td_model_layer *layers; /* [n_layers], owned */
  td_workspace at;
  td_devptr workspace;
};

#endif
