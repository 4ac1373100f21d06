/* A forward pass as data: a list of ops over buffers in device memory.
 *
 * A model's program is built once (models/forward.c) and says what a step computes, whatever the step: an
 * op's number of rows is symbolic (td_extent) and comes from the step plan when the program is submitted. A
 * backend compiles a program and runs it (kernels.h). What changes a program is a pass over its list: it
 * reads ops and writes another list.
 *
 * Every shape is validated when the model is loaded, so backends only assert (TD_BUG_ON) what the loader has
 * promised.
 *
 * Thread: any; a program does not change once it is made. */
#ifndef TD_KERNELS_PROGRAM_H
#define TD_KERNELS_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "step/plan.h"
#include "common/status.h"
#include "kernels/kv.h"
#include "kernels/weight.h"

/* Device memory. Only the backend that made it may look at addr; 0 is "none". */
typedef struct td_devptr {
  uintptr_t addr;
} td_devptr;

static inline td_devptr td_devptr_at(td_devptr p, size_t offset_bytes)
{
  return (td_devptr){p.addr + offset_bytes};
}

/* ---- ops; n is the op's number of rows ---- */

typedef enum td_rope_style {
  TD_ROPE_HALVES, /* pairs (i, i + rotary_dim/2): HF order */
  TD_ROPE_PAIRS,  /* pairs (2i, 2i + 1): Command-R, and GGUF archs whose q/k rows are permuted for it */
} td_rope_style;

/* Token embedding: out[t] = weight row token_ids[t] of the step plan, widened to activations. */
typedef struct td_embed_params {
  const td_weight *weight; /* [vocab, width], one part */
  td_devptr out;           /* activations [n, width] */
  uint32_t width;
  float scale; /* multiplies; 0: as stored */
} td_embed_params;

/* out[t] = x[t] / rms(x[t]) * weight, or added to out[t]. */
typedef struct td_rmsnorm_params {
  td_devptr x;      /* activations [n, width]; may be overwritten where out is added to */
  td_devptr weight; /* f32 [width] (see upload_f32) */
  td_devptr out;    /* activations [n, width]; may be x, if it is not added to */
  uint32_t width;
  float eps;
  uint32_t stride; /* elements from row to row of x and out; 0: width */
  bool centred;    /* the mean of x[t] is taken off before: LayerNorm without a bias */
  bool add;
} td_rmsnorm_params;

/* out[t, j] = sum_k x[t, k] * weight[j, k] + bias[j], and what out[t, j] held, if add: one rounding for all
 * of it. */
typedef struct td_linear_params {
  const td_weight *weight; /* [n_out, n_in]: parts side by side */
  td_devptr x;             /* activations [n, n_in] */
  td_devptr out;           /* activations [n, n_out], or f32 if out_f32 */
  uint32_t n_in, n_out;    /* as the weight has them; bias too */
  bool bias;
  bool out_f32; /* for logits */
  bool add;     /* for the residual stream; out is not x */
} td_linear_params;

/* Per token: q and k heads are normalised (if weights are given), rotated by the token's position; q stays in
 * qkv, k and v go to the token's line in its page. */
typedef struct td_rope_kv_params {
  td_devptr qkv;      /* activations [n, (n_heads + 2 n_kv_heads) * head_dim]: q, k, v */
  td_devptr q_norm;   /* f32 [head_dim] or none: RMSNorm per head before rotation (Qwen3) */
  td_devptr k_norm;   /* f32 [head_dim] or none */
  td_devptr inv_freq; /* f32 [rotary_dim / 2], scaling applied; all 0: no rotation */
  float attn_factor;  /* multiplies cos and sin (YaRN); 1 = none */
  float norm_eps;
  td_rope_style style;
  td_kv *kv;
  uint32_t kv_group, layer; /* of the store, and in that group */
  uint32_t n_heads, n_kv_heads, head_dim, rotary_dim;
} td_rope_kv_params;

/* Causal attention of the plan's rows over their pages. */
typedef struct td_attention_params {
  td_devptr qkv; /* as above: q of every token */
  td_devptr out; /* activations [n, n_heads * head_dim] */
  const td_kv *kv;
  float scale;            /* of q.k, normally 1/sqrt(head_dim) */
  uint32_t window_tokens; /* sliding window, the group's: keys at position > p - window; 0 = none */
  uint32_t kv_group, layer;
  uint32_t n_heads, n_kv_heads, head_dim;
} td_attention_params;

/* out[t, j] = silu(gate_up[t, j]) * gate_up[t, width + j]. */
typedef struct td_swiglu_params {
  td_devptr gate_up; /* activations [n, 2 * width] */
  td_devptr out;     /* activations [n, width] */
  uint32_t width;
} td_swiglu_params;

/* LINEAR and SWIGLU in one: silu and product of what x gives with the first and the last half of the weight's
 * rows. A backend's own pass makes it out of the two; gate_up is then where the first of them would write,
 * for steps in which two ops are faster. Without gate_up it is one kernel, or a fault where there is none for
 * this shape and n. */
typedef struct td_linear_swiglu_params {
  const td_weight *weight; /* [2 * width, n_in]: gate, then up */
  td_devptr x;             /* activations [n, n_in] */
  td_devptr gate_up;       /* activations [n, 2 * width], or none */
  td_devptr out;           /* activations [n, width] */
  uint32_t n_in, width;
} td_linear_swiglu_params;

/* out[i] = x[logits[i].token] of the step plan. */
typedef struct td_gather_params {
  td_devptr x;   /* activations [all tokens, width] */
  td_devptr out; /* activations [n, width] */
  uint32_t width;
} td_gather_params;

/* Chooses a token for every entry of the plan's logits that has no target and is not late, by the sampling
 * state of its slot (set_sampling). */
typedef struct td_sample_params {
  td_devptr logits; /* f32 [n, vocab]; may be overwritten */
  uint32_t vocab;
} td_sample_params;

typedef enum td_pooling {
  TD_POOL_LAST, /* x of the sequence's last token so far */
  TD_POOL_MEAN, /* the mean of x over all its tokens so far */
} td_pooling;

/* A vector for each sequence, accumulated over its chunks: out[slot] is x pooled over the tokens from
 * position 0 on. All of them must be computed: KV that was found in a tree has left no x. Sums are f64, token
 * after token, so a vector does not depend on how its prompt was chunked. */
typedef struct td_pool_params {
  td_devptr x;    /* activations [all tokens, width] */
  td_devptr sums; /* f64 [slots, width], kept from step to step; for the mean */
  td_devptr out;  /* f32 [slots, width] */
  uint32_t width;
  td_pooling pooling;
} td_pool_params;

typedef enum td_op_kind {
#define TD_OP(KIND, name) TD_OP_##KIND,
#include "kernels/ops.def"
  TD_OP_KINDS
} td_op_kind;

extern const char *const td_op_names[TD_OP_KINDS]; /* "embed", "rmsnorm", ... */

/* How many rows an op has. A mixture of experts will add tokens x top_k. */
typedef enum td_extent {
  TD_EXTENT_TOKENS, /* all tokens of the step */
  TD_EXTENT_LOGITS, /* those that want logits */
  TD_EXTENT_ROWS,   /* the step's sequences */
} td_extent;

static inline uint32_t td_extent_rows(td_extent extent, const td_plan *plan)
{
  switch (extent) {
  case TD_EXTENT_TOKENS: return plan->n_tokens;
  case TD_EXTENT_LOGITS: return plan->n_logits;
  default: return plan->n_rows;
  }
}

#define TD_NO_LAYER UINT32_MAX

typedef struct td_op {
  td_op_kind kind;
  td_extent extent;
  uint32_t layer;   /* of the model, or TD_NO_LAYER */
  const char *role; /* what it is there: "qkv", "o", "head"; static text, NULL in a program made by hand */
  union {
#define TD_OP(KIND, name) td_##name##_params name;
#include "kernels/ops.def"
  };
} td_op;

/* ---- programs ---- */

enum { TD_PROGRAM_BUFFERS_MAX = 16 };

/* What ops read and write, by name. */
typedef struct td_program_buffer {
  const char *name; /* static text */
  td_devptr at;
} td_program_buffer;

typedef struct td_program {
  uint32_t n_ops, max_ops;
  uint32_t
      n_unsampled; /* a step that wants no logits needs the first so many ops only: its KV is then written */
  td_op *ops;
  uint32_t n_buffers;
  td_program_buffer buffers[TD_PROGRAM_BUFFERS_MAX];
} td_program;

TD_MUST_CHECK td_status td_program_create(uint32_t max_ops, td_program **out, td_error *err);
void td_program_destroy(td_program *p); /* NULL: does nothing */
void td_program_add(td_program *p,
                    td_op op); /* n_unsampled is all so far; who knows better sets it at the end */
void td_program_name_buffer(td_program *p, const char *name, td_devptr at);
td_devptr td_program_buffer_at(const td_program *p, const char *name); /* none: no such name */

/* For backends, before they compile: ops agree with the weights and the KV groups that they name
 * (TD_BUG_ON). */
void td_program_check(const td_program *p);

/* A pass: the ops of some kinds only, bits 1 << td_op_kind. */
TD_MUST_CHECK td_status td_program_keep(const td_program *p, uint32_t kinds, td_program **out, td_error *err);
enum { TD_OP_ALL = (1 << TD_OP_KINDS) - 1 };

/* A line for each op: "layer 0   linear    qkv        tokens   h -> qkv  [1024 x 512]"; +> adds to what is
 * there. */
void td_program_print(const td_program *p, td_buf *out);

#endif
