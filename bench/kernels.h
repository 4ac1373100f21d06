/* What `tandem-bench kernels` times: ops of a model, and their inputs, in copies that together are larger
 * than the caches. */
#ifndef TD_BENCH_KERNELS_H
#define TD_BENCH_KERNELS_H

#include "bench/stage.h"

enum { TD_KERNELS_COPIES_MAX = 64 };

typedef enum td_kernels_matrix {
  TD_KERNELS_QKV,
  TD_KERNELS_O,
  TD_KERNELS_GATE_UP,
  TD_KERNELS_DOWN,
  TD_KERNELS_HEAD,
  TD_KERNELS_MATRICES
} td_kernels_matrix;
extern const char *const td_kernels_matrix_names[TD_KERNELS_MATRICES];

typedef struct td_kernels {
  td_stage stage; /* stage.desc: the model */
  td_dtype weight_dtype;
  double cache_mb;
  uint32_t q_dim, qkv_dim;
  td_weight *weights[TD_KERNELS_MATRICES][TD_KERNELS_COPIES_MAX];
  void *stored[TD_KERNELS_MATRICES]
              [TD_KERNELS_COPIES_MAX]; /* quantised weights, which the backend may read in place */
  uint32_t n_copies[TD_KERNELS_MATRICES];
  double matrix_bytes[TD_KERNELS_MATRICES]; /* of one copy */
  size_t slab_bytes; /* of x, out and glu: each has room for at least two of the widest activations */
  td_devptr x, out, glu, logits, ones;
  /* the op under test */
  td_kernels_matrix m;
  uint32_t n_rows;
} td_kernels;

/* Call after td_stage_open. with_glu: also allocates memory for the ops of "glu". */
void td_kernels_make_inputs(td_kernels *k, bool with_glu);
void td_kernels_free_inputs(td_kernels *k);
uint32_t td_kernels_rows(const td_kernels *k, td_kernels_matrix m);
uint32_t td_kernels_cols(const td_kernels *k, td_kernels_matrix m);
/* Whether the matrix's output is added to the residual stream, as in a model. */
bool td_kernels_adds(td_kernels_matrix m);

/* Makes the i-th op of a step, for k->n_rows rows. Each op uses the next copy of its inputs. */
typedef td_op td_kernels_op(const td_kernels *k, uint32_t i);
td_kernels_op td_kernels_linear, td_kernels_norm, td_kernels_swiglu, td_kernels_embed, td_kernels_rope,
    td_kernels_attention, td_kernels_sample;
td_kernels_op td_kernels_glu; /* gate_up and swiglu in one op, if the backend has it for this many rows */
td_kernels_op td_kernels_glu_by_two; /* the same in two ops, 2 i and 2 i + 1 */

#endif
