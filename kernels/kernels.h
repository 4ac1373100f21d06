/* The ops: what a backend can do, over opaque device memory.
 *
 * A backend (cpu/, later cuda/) is one device with its threads or streams. The forward in models/ is a list
 * of these ops; it never looks behind a td_devptr. Ops are queued in order on the device and return
 * nothing: a fault shows at td_backend_ops.step_end. Every shape is validated when the model is loaded, so
 * ops only assert (TD_BUG_ON) what the loader has promised.
 *
 * The step: step_begin(plan) makes a plan the current one (token ids, positions, rows and page
 * table come from there), then ops, then sample, then step_end waits and hands out the sampled ids.
 * With pipeline_depth 2, step_submit closes a step that runs on, and the next may begin before its
 * step_end: a token id below 0 in a plan then means the token that the step before sampled, logits row -1 - id.
 * Steps of decodes alone may be recorded once and replayed, which spares the host queueing every op (record, replay).
 *
 * The batch rule (CPU backend, and CUDA with batch_invariant): every output element is computed by one fixed sequence of operations
 * that does not depend on how many rows the step has, how a prompt was chunked, which pages hold its KV,
 * how many threads run, or which instruction set was picked. So a request's tokens are bit-identical alone or
 * in any batch. kernels/README.md states the sequences.
 *
 * Thread: the engine thread, except weight_import and alloc before the engine starts. */
#ifndef TD_KERNELS_KERNELS_H
#define TD_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/plan.h"
#include "config/sampling.h"
#include "config/status.h"
#include "kernels/dtype.h"

/* Device memory. Only the backend that made it may look at addr; 0 is "none". */
typedef struct td_devptr {
  uintptr_t addr;
} td_devptr;

static inline td_devptr td_devptr_at(td_devptr p, size_t offset_bytes)
{
  return (td_devptr){p.addr + offset_bytes};
}

typedef struct td_backend td_backend;
typedef struct td_weight td_weight; /* a matrix as the backend keeps it */
typedef struct td_kv td_kv;         /* the paged KV store of all layers */

/* Where a stored matrix lies in its file. A backend that copies weights reads the file: a read of a file that was cut
 * fails, where touching its mapping kills. */
typedef struct td_weight_file {
  int fd;
  uint64_t offset_bytes;
  const char *name; /* for messages; lives until weights_wait */
} td_weight_file;

/* One stored matrix [n_rows, n_cols], row-major, in host memory (usually a file mapping), or a made-up one. */
typedef struct td_weight_part {
  td_dtype dtype;
  const void *data;  /* borrowed; must stay mapped while the weight lives. NULL: made up, see seed */
  uint64_t n_rows;   /* output features */
  const float *bias; /* [n_rows] host floats, copied; NULL = none */
  uint64_t seed;     /* without data: element i is td_dummy_bf16(seed, i) of kernels/dummy.h, dtype is TD_BF16 */
  const td_weight_file *file; /* the same bytes in a file, for backends that copy; NULL: read data */
} td_weight_part;

enum { TD_WEIGHT_PARTS_MAX = 3 }; /* q,k,v or gate,up: one product, outputs side by side */

typedef struct td_kv_shape {
  uint32_t n_layers, n_pages, page_tokens, n_kv_heads, head_dim;
  uint32_t n_heads; /* query heads: how attention over these pages is planned */
  uint32_t window_tokens; /* of attention in every layer, 0: none; for the same reason */
} td_kv_shape;

typedef enum td_rope_style {
  TD_ROPE_HALVES, /* pairs (i, i + rotary_dim/2): HF order */
  TD_ROPE_PAIRS,  /* pairs (2i, 2i + 1): GGUF arch llama, whose q/k rows are permuted for it */
} td_rope_style;

/* Token embedding: out[t] = weight row token_ids[t] of the current plan, widened to activations. */
typedef struct td_embed_params {
  const td_weight *weight; /* [vocab, width], one part */
  td_devptr out;           /* activations [n_tokens, width] */
  uint32_t width;
} td_embed_params;

/* out[t] = x[t] / rms(x[t]) * weight. */
typedef struct td_rmsnorm_params {
  td_devptr x;      /* activations [n, width] */
  td_devptr weight; /* f32 [width] (see upload_f32) */
  td_devptr out;    /* activations [n, width] */
  uint32_t n, width;
  float eps;
} td_rmsnorm_params;

/* out[t, j] = sum_k x[t, k] * weight[j, k] + bias[j], and what out[t, j] held, if add: one rounding for all of it. */
typedef struct td_linear_params {
  const td_weight *weight; /* [n_out, n_in]: parts side by side */
  td_devptr x;             /* activations [n, n_in] */
  td_devptr out;           /* activations [n, n_out], or f32 if out_f32 */
  uint32_t n;
  bool out_f32; /* for logits */
  bool add;     /* for the residual stream; out is not x */
} td_linear_params;

/* Per token of the plan: q and k heads are normalised (if weights given), rotated by the token's
 * position; q stays in qkv, k and v go to the token's line in its page. */
typedef struct td_rope_kv_params {
  td_devptr qkv;      /* activations [n_tokens, (n_heads + 2 n_kv_heads) * head_dim]: q, k, v */
  td_devptr q_norm;   /* f32 [head_dim] or none: RMSNorm per head before rotation (Qwen3) */
  td_devptr k_norm;   /* f32 [head_dim] or none */
  td_devptr inv_freq; /* f32 [rotary_dim / 2], scaling applied */
  float attn_factor;  /* multiplies cos and sin (YaRN); 1 = none */
  float norm_eps;
  td_rope_style style;
  td_kv *kv;
  uint32_t layer, n_heads, n_kv_heads, head_dim, rotary_dim;
} td_rope_kv_params;

/* Causal attention of the plan's rows over their pages. */
typedef struct td_attention_params {
  td_devptr qkv; /* as above: q of every token */
  td_devptr out; /* activations [n_tokens, n_heads * head_dim] */
  const td_kv *kv;
  float scale;            /* of q.k, normally 1/sqrt(head_dim) */
  uint32_t window_tokens; /* sliding window: keys at position > p - window; 0 = none */
  uint32_t layer, n_heads, n_kv_heads, head_dim;
} td_attention_params;

/* out[t, j] = silu(gate_up[t, j]) * gate_up[t, width + j]. */
typedef struct td_swiglu_params {
  td_devptr gate_up; /* activations [n, 2 * width] */
  td_devptr out;     /* activations [n, width] */
  uint32_t n, width;
} td_swiglu_params;

/* Both of the above in one: silu and product of what x gives with the first and the last half of the weight's rows. */
typedef struct td_linear_swiglu_params {
  const td_weight *weight; /* [2 * width, n_in]: gate, then up */
  td_devptr x;             /* activations [n, n_in] */
  td_devptr out;           /* activations [n, width] */
  uint32_t n, width;
} td_linear_swiglu_params;

/* out[i] = x[last token of row logits_rows[i]] of the current plan. */
typedef struct td_gather_params {
  td_devptr x;   /* activations [n_tokens, width] */
  td_devptr out; /* activations [n_logits, width] */
  uint32_t width;
} td_gather_params;

/* Chooses a token for every logits row by the sampling state of its slot (set_sampling). */
typedef struct td_sample_params {
  td_devptr logits; /* f32 [n_logits, vocab]; may be overwritten */
  uint32_t vocab;
} td_sample_params;

/* queue(arg, plan) queues the ops of a step of as many decodes as the plan says, several times, up to max_rows; nothing is written to
 * the KV store. What its products read and write is overwritten. */
typedef struct td_tune_params {
  uint32_t budget_ms;       /* 0: nothing is measured, what is cached is used */
  const char *cache_folder; /* option cache_dir: "auto", a path, or "" for none */
  void (*queue)(void *arg, const td_plan *plan);
  void *arg;
} td_tune_params;

enum { TD_SAMPLED_NAN = -1 }; /* instead of a token id: the row's logits hold a NaN or no finite value */

typedef struct td_backend_ops {
  const char *name; /* "cpu" */

  void (*destroy)(td_backend *be); /* frees all its memory, weights and KV; joins its threads */

  /* Memory: zeroed, aligned for every op; freed by destroy. Sized at start only. */
  td_status (*alloc)(td_backend *be, size_t bytes, td_devptr *out, td_error *err);
  td_status (*upload_f32)(td_backend *be, const float *src, size_t n, td_devptr *out, td_error *err);
  /* Blocking copy to host, for tests and tools. */
  td_status (*download)(td_backend *be, td_devptr src, size_t bytes, void *dst, td_error *err);

  /* Weights live until destroy. n_cols must suit each part's block size (checked: TD_ERR_MODEL). */
  td_status (*weight_import)(td_backend *be, const td_weight_part *parts, uint32_t n_parts, uint64_t n_cols,
                             td_weight **out, td_error *err);
  /* Imports may go on behind the caller's back; waits for all of them and says what failed. Before the first step. */
  td_status (*weights_wait)(td_backend *be, td_error *err);

  /* KV store: page layout is the backend's own. kv_check refuses shapes that no kernel serves, before anything is loaded
   * (n_pages is not looked at). */
  td_status (*kv_check)(const td_backend *be, const td_kv_shape *shape, td_error *err);
  size_t (*kv_bytes_per_page)(const td_backend *be, const td_kv_shape *shape);
  /* What kv_create takes beside the pages: partials of attention, for as many rows as a step may have. */
  size_t (*kv_fixed_bytes)(const td_backend *be, const td_kv_shape *shape);
  /* Bytes that KV pages may take by default, asked once weights and workspace are there; before that, what all of them
   * may take together. */
  uint64_t (*kv_budget_bytes)(const td_backend *be);
  td_status (*kv_create)(td_backend *be, const td_kv_shape *shape, td_kv **out, td_error *err);
  /* Frees a store before its backend, which would free it too. No step is under way, and no recorded step that uses it runs any more. */
  void (*kv_destroy)(td_backend *be, td_kv *kv);

  /* Replaces a slot's whole sampling state. */
  void (*set_sampling)(td_backend *be, uint32_t slot, const td_sampling *sampling);

  void (*step_begin)(td_backend *be, const td_plan *plan); /* plan borrowed until step_submit or step_end */
  void (*embed)(td_backend *be, const td_embed_params *p);
  void (*rmsnorm)(td_backend *be, const td_rmsnorm_params *p);
  void (*linear)(td_backend *be, const td_linear_params *p);
  void (*rope_kv)(td_backend *be, const td_rope_kv_params *p);
  void (*attention)(td_backend *be, const td_attention_params *p);
  void (*swiglu)(td_backend *be, const td_swiglu_params *p);
  void (*gather)(td_backend *be, const td_gather_params *p);
  void (*sample)(td_backend *be, const td_sample_params *p);
  /* All ops of the step are queued. May be left out where no other step begins before step_end. */
  void (*step_submit)(td_backend *be);
  /* Waits for the oldest step; token_ids[n_logits] receives what sample chose. TD_ERR_DEVICE on a fault. */
  td_status (*step_end)(td_backend *be, int32_t *token_ids, td_error *err);

  /* Measures which algorithms are fastest for the products of a step, within a budget, with what earlier starts found.
   * After kv_create, before record. NULL where there is nothing to choose. */
  td_status (*tune)(td_backend *be, const td_tune_params *p, td_error *err);
  /* Records a step of n_rows decodes: queue(arg, plan) queues its ops for a plan of that size, several times, by
   * be->ops as they are then, and nothing is written to the KV store. The last recording of as many rows counts. NULL where a backend gains
   * nothing from it. */
  td_status (*record)(td_backend *be, uint32_t n_rows, void (*queue)(void *arg, const td_plan *plan), void *arg,
                      td_error *err);
  /* Queues the whole current step from a recording; false: there is none that fits, queue the ops. NULL as record. */
  bool (*replay)(td_backend *be);
  /* False: not done, not for this shape or so few rows; queue linear and swiglu instead. NULL where it never is. */
  bool (*linear_swiglu)(td_backend *be, const td_linear_swiglu_params *p);
} td_backend_ops;

struct td_backend {
  const td_backend_ops *ops;
  uint32_t activation_bytes;     /* size of one activation element: 4 on the CPU */
  uint32_t pipeline_depth;       /* steps that may be under way at once: 1 or 2 */
  uint32_t weight_bytes;         /* memory a stored parameter takes here; 0: it is used where it is mapped */
  float step_busy_us;            /* the device's time for the step that ended last; 0: not known */
  float step_idle_us;            /* and between the step before and it, if it was begun before or soon after that one's end */
  uint32_t n_fused_steps;        /* recorded steps whose ops are fused, see kernels/cuda/fused.cuh */
  uint32_t n_fitted_steps;       /* and those whose attention for decodes gets its blocks step by step, see kernels/cuda/record.cu */
  uint32_t max_rows, max_tokens; /* of a step: the config's, or this backend's own choice where that was 0 */
  char identity[256];            /* what times that were measured here are good for: device, driver, threads */
};

typedef struct td_backend_config {
  uint32_t n_threads; /* compute threads, the caller's included; 0 = one per usable core */
  uint32_t max_slots; /* sampling states */
  uint32_t max_rows;  /* rows of a plan, logits rows included; 0: the backend's choice */
  uint32_t max_tokens; /* tokens of a plan; 0: the backend's choice; at least max_rows is taken */
  uint32_t max_context_tokens;
  uint32_t max_vocab; /* for the sampler's workspace */
  uint32_t device;    /* which GPU; the CPU backend does not look */
  uint32_t gpu_memory_percent; /* share of a GPU's memory that may be taken in all */
  bool batch_invariant; /* the batch rule holds on a GPU too; the CPU backend does not look */
  const struct td_attention_policy *attention_policy; /* for benches and tests: decides in the place of predicted time what decodes on a GPU
                                                         share (kernels/attention/plan.h). NULL: as the daemon has it */
  bool always_linear_swiglu; /* on a GPU: for all shapes that its kernel can do, not only where that is faster than two ops: test_ops and
                                benches ask for it */
} td_backend_config;

/* name: "cpu", "cuda", or "auto": CUDA where this build has it and a device is usable, else the CPU. TD_ERR_CONFIG for a
 * name that this build does not have. */
TD_MUST_CHECK td_status td_backend_create(const char *name, const td_backend_config *config, td_backend **out,
                                          td_error *err);

/* For backends: fills max_rows and max_tokens where they are 0. */
void td_backend_choose_sizes(td_backend_config *config, uint32_t own_max_rows, uint32_t own_max_tokens);

#endif
