/* A forward pass as data: a list of ops over buffers in device memory.
 *
 * A model's program is built once (models/forward.c) and serves every step: an op's number of rows is
 * symbolic (td_extent), and the step plan gives it when the program is submitted. A backend compiles a
 * program and runs it (kernels.h). A pass transforms a program: it reads the list of ops and writes another
 * list.
 *
 * The loader validates every shape. Backends only assert (TD_BUG_ON) what the loader has validated.
 *
 * Thread: any. A program does not change once it is built. */
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

/* An address in device memory. Only the backend that made it may dereference addr; 0 means "none". */
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
  float scale; /* factor of the embedding; 0: none */
} td_embed_params;

/* out[t] = x[t] / rms(x[t]) * weight, or with `add`: out[t] += that. */
typedef struct td_rmsnorm_params {
  td_devptr x;      /* activations [n, width]; may be overwritten if add is set */
  td_devptr weight; /* f32 [width] (see upload_f32) */
  td_devptr out;    /* activations [n, width]; may be x, unless add is set */
  uint32_t width;
  float eps;
  uint32_t stride; /* elements from one row to the next, in x and out; 0: width */
  bool centred;    /* the mean of x[t] is subtracted first: LayerNorm without bias */
  bool add;
} td_rmsnorm_params;

/* out[t, j] = sum_k x[t, k] * weight[j, k] + bias[j], plus the old out[t, j] with `add`. The result is
 * rounded once, after all sums. */
typedef struct td_linear_params {
  const td_weight *weight; /* [n_out, n_in]: parts side by side */
  td_devptr x;             /* activations [n, n_in] */
  td_devptr out;           /* activations [n, n_out], or f32 if out_f32 */
  uint32_t n_in, n_out;    /* must agree with the weight, as must bias */
  bool bias;
  bool out_f32; /* for logits */
  bool add;     /* for the residual stream; out is not x */
} td_linear_params;

/* For each token: normalises its q and k heads (if norm weights are given) and rotates them by the token's
 * position. q stays in qkv; k and v are written to the token's line in its page. */
typedef struct td_rope_kv_params {
  td_devptr qkv;      /* activations [n, (n_heads + 2 n_kv_heads) * head_dim]: q, k, v */
  td_devptr q_norm;   /* f32 [head_dim] or none: RMSNorm per head before rotation (Qwen3) */
  td_devptr k_norm;   /* f32 [head_dim] or none */
  td_devptr inv_freq; /* f32 [rotary_dim / 2], scaling applied; all 0: no rotation */
  float attn_factor;  /* factor of cos and sin (YaRN); 1: none */
  float norm_eps;
  td_rope_style style;
  td_kv *kv;
  uint32_t kv_group, layer; /* group of the store, and layer in that group */
  uint32_t n_heads, n_kv_heads, head_dim, rotary_dim;
} td_rope_kv_params;

/* Causal attention of the plan's rows over their pages. */
typedef struct td_attention_params {
  td_devptr qkv; /* as in td_rope_kv_params; q of every token is read */
  td_devptr out; /* activations [n, n_heads * head_dim] */
  const td_kv *kv;
  float scale;            /* factor of q.k, normally 1/sqrt(head_dim) */
  uint32_t window_tokens; /* the KV group's sliding window: a query at p sees keys at positions > p - window;
                             0: no window */
  uint32_t kv_group, layer;
  uint32_t n_heads, n_kv_heads, head_dim;
} td_attention_params;

/* out[t, j] = silu(gate_up[t, j]) * gate_up[t, width + j]. */
typedef struct td_swiglu_params {
  td_devptr gate_up; /* activations [n, 2 * width] */
  td_devptr out;     /* activations [n, width] */
  uint32_t width;
} td_swiglu_params;

/* LINEAR and SWIGLU as one op. A backend's own pass makes it out of the two. gate_up is the buffer that the
 * LINEAR would write, for steps in which two ops are faster. If gate_up is none, the op is always one kernel,
 * and it faults if no kernel serves this shape and n. */
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

/* Chooses a token for every logits entry of the plan that has no target and is not late, by the sampling
 * state of the entry's slot (set_sampling). */
typedef struct td_sample_params {
  td_devptr logits; /* f32 [n, vocab]; may be overwritten */
  uint32_t vocab;
} td_sample_params;

typedef enum td_pooling {
  TD_POOL_LAST, /* x of the sequence's last token so far */
  TD_POOL_MEAN, /* the mean of x over all its tokens so far */
} td_pooling;

/* One vector for each sequence: out[slot] is x pooled over the sequence's tokens from position 0 to the last
 * one computed. It is accumulated over prefill chunks. All tokens must be computed, because a prefix hit
 * gives KV but no x. Sums are f64 and added token by token, so a vector does not depend on the chunking. */
typedef struct td_pool_params {
  td_devptr x;    /* activations [all tokens, width] */
  td_devptr sums; /* f64 [slots, width], kept between steps; only for the mean */
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

/* Which rows an op has. */
typedef enum td_extent {
  TD_EXTENT_TOKENS, /* all tokens of the step */
  TD_EXTENT_LOGITS, /* the tokens whose logits the plan asks for */
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
  const char *role; /* of its weight or result, for prints: "qkv", "o", "head"; static text, NULL in a
                       hand-made program */
  union {
#define TD_OP(KIND, name) td_##name##_params name;
#include "kernels/ops.def"
  };
} td_op;

/* ---- programs ---- */

enum { TD_PROGRAM_BUFFERS_MAX = 16 };

/* A buffer that ops read and write, with a name for prints. */
typedef struct td_program_buffer {
  const char *name; /* static text */
  td_devptr at;
} td_program_buffer;

typedef struct td_program {
  uint32_t n_ops, max_ops;
  uint32_t n_unsampled; /* a step that wants no logits runs only this many ops: then its KV is written */
  td_op *ops;
  uint32_t n_buffers;
  td_program_buffer buffers[TD_PROGRAM_BUFFERS_MAX];
} td_program;

TD_MUST_CHECK td_status td_program_create(uint32_t max_ops, td_program **out, td_error *err);
void td_program_destroy(td_program *p); /* NULL: does nothing */
/* Sets n_unsampled to all ops so far; a caller that wants fewer sets it after the last op. */
void td_program_add(td_program *p, td_op op);
void td_program_name_buffer(td_program *p, const char *name, td_devptr at);
td_devptr td_program_buffer_at(const td_program *p, const char *name); /* returns none for an unknown name */

/* For backends, before they compile: asserts (TD_BUG_ON) that ops agree with the weights and the KV groups
 * that they name. */
void td_program_check(const td_program *p);

/* A pass: keeps the ops of some kinds only. kinds: bits 1 << td_op_kind. */
TD_MUST_CHECK td_status td_program_keep(const td_program *p, uint32_t kinds, td_program **out, td_error *err);
enum { TD_OP_ALL = (1 << TD_OP_KINDS) - 1 };

/* Prints a line for each op: "layer 0   linear    qkv        tokens   h -> qkv  [1024 x 512]". "+>" means
 * that the op adds to its output buffer. */
void td_program_print(const td_program *p, td_buf *out);

#endif
