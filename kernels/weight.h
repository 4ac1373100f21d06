/* Descriptions of weight matrices: how the elements are stored, and which part of the model's matrix a
 * backend holds.
 *
 * A backend's td_backend_ops.weight_type says how the backend keeps a stored type. The memory plan, the
 * loader and the backend's own kernels all ask that function. Every backend's weight struct begins with a
 * td_weight. */
#ifndef TD_KERNELS_WEIGHT_H
#define TD_KERNELS_WEIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

typedef enum td_scale_layout {
  TD_SCALES_NONE,
  TD_SCALES_PER_BLOCK, /* part of the storage type's own blocks (td_dtypes) */
} td_scale_layout;

typedef struct td_weight_type {
  td_dtype storage; /* as the elements lie in the backend's memory */
  td_dtype compute; /* the elements are widened to this type before they are multiplied */
  td_scale_layout scales;
} td_weight_type;

/* The axis along which a matrix is cut for several ranks. OUT: each rank computes some output features, from
 * all inputs. IN: each rank computes partial sums of all output features, from some inputs, and an all-reduce
 * adds them up. */
typedef enum td_shard_axis { TD_SHARD_NONE, TD_SHARD_OUT, TD_SHARD_IN } td_shard_axis;

typedef struct td_shard {
  td_shard_axis axis; /* TD_SHARD_NONE: every rank holds the whole matrix */
  uint32_t rank, n_ranks;
} td_shard;

enum { TD_WEIGHT_PARTS_MAX = 3 }; /* q, k, v or gate, up: one GEMM with the outputs side by side */

typedef struct td_weight {
  uint32_t n_out, n_in; /* of this shard */
  uint32_t n_parts;
  td_weight_type types[TD_WEIGHT_PARTS_MAX]; /* of each part */
  td_shard shard;
  bool has_bias;
} td_weight;

/* The place of a stored matrix in its file. Backends that copy weights read the file: if the file was
 * truncated, a read fails, whereas an access to its mapping would raise SIGBUS. */
typedef struct td_weight_file {
  int fd;
  uint64_t offset_bytes;
  const char *name; /* for messages; must live until weights_wait */
} td_weight_file;

/* One stored matrix [n_rows, n_cols] or a slice of one. It is row-major and in host memory (usually a file
 * mapping), or made of dummy weights. */
typedef struct td_weight_part {
  td_dtype dtype;
  const void *data; /* borrowed; must stay mapped while the weight lives. NULL: dummy weights, see seed */
  uint64_t n_rows;  /* output features */
  uint64_t row_elements; /* row length of the whole matrix, if this is a slice of its columns; 0: n_cols */
  const float *bias;     /* [n_rows] host floats, copied; NULL: none */
  uint64_t seed; /* if data is NULL: element i is td_dummy_bf16(seed, i) of kernels/dummy.h, and dtype is
                    TD_BF16 */
  uint64_t first_element;     /* if data is NULL: the index i of the slice's first element */
  const td_weight_file *file; /* the same bytes in a file, for backends that copy; NULL: read data */
  td_shard shard;             /* which slice of the model's matrix this is; {0}: the whole matrix */
  bool is_looked_up;          /* only rows are read, and no linear uses it: an embedding that is not tied */
} td_weight_part;

/* The index i (see seed) of element (row, col) of a part with dummy weights. */
static inline uint64_t td_weight_part_element(const td_weight_part *p, uint64_t n_cols, uint64_t row,
                                              uint64_t col)
{
  return p->first_element + row * (p->row_elements ? p->row_elements : n_cols) + col;
}

/* Sets the bytes from one row of a part to the next. Returns false if a row is not a whole number of
 * blocks. */
static inline bool td_weight_part_stride(const td_weight_part *p, uint64_t n_cols, uint64_t *bytes)
{
  return td_dtype_row_bytes(p->dtype, p->row_elements ? p->row_elements : n_cols, bytes);
}

#endif
