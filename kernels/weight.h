/* What a matrix is: how its elements are kept, and which part of the model's matrix a backend has.
 *
 * A backend says with td_backend_ops.weight_type what it makes of a stored type: the memory plan, the loader
 * and the backend's own kernels all ask that. Every backend's weight begins with a td_weight. */
#ifndef TD_KERNELS_WEIGHT_H
#define TD_KERNELS_WEIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

typedef enum td_scale_layout {
  TD_SCALES_NONE,
  TD_SCALES_PER_BLOCK, /* inside the storage type's own blocks (td_dtypes) */
} td_scale_layout;

typedef struct td_weight_type {
  td_dtype storage; /* of the elements in the backend's memory */
  td_dtype compute; /* what they are widened to before they are multiplied */
  td_scale_layout scales;
} td_weight_type;

/* Along what a matrix is cut for several ranks: each computes some output features of all inputs, or all
 * output features' sums over some inputs, which an all-reduce adds up. */
typedef enum td_shard_axis { TD_SHARD_NONE, TD_SHARD_OUT, TD_SHARD_IN } td_shard_axis;

typedef struct td_shard {
  td_shard_axis axis; /* TD_SHARD_NONE: every rank has all of it */
  uint32_t rank, n_ranks;
} td_shard;

enum { TD_WEIGHT_PARTS_MAX = 3 }; /* q,k,v or gate,up: one product, outputs side by side */

typedef struct td_weight {
  uint32_t n_out, n_in; /* of this shard */
  uint32_t n_parts;
  td_weight_type types[TD_WEIGHT_PARTS_MAX]; /* of each part */
  td_shard shard;
  bool has_bias;
} td_weight;

/* Where a stored matrix lies in its file. A backend that copies weights reads the file: a read of a file that
 * was cut fails, where touching its mapping kills. */
typedef struct td_weight_file {
  int fd;
  uint64_t offset_bytes;
  const char *name; /* for messages; lives until weights_wait */
} td_weight_file;

/* One stored matrix [n_rows, n_cols] or a slice of one, row-major, in host memory (usually a file mapping),
 * or a made-up one. */
typedef struct td_weight_part {
  td_dtype dtype;
  const void *data;      /* borrowed; must stay mapped while the weight lives. NULL: made up, see seed */
  uint64_t n_rows;       /* output features */
  uint64_t row_elements; /* of a row of the whole matrix, where this is a slice of columns; 0: n_cols */
  const float *bias;     /* [n_rows] host floats, copied; NULL = none */
  uint64_t seed; /* without data: element i is td_dummy_bf16(seed, i) of kernels/dummy.h, dtype is TD_BF16 */
  uint64_t first_element;     /* without data: i of the slice's first element */
  const td_weight_file *file; /* the same bytes in a file, for backends that copy; NULL: read data */
  td_shard shard;             /* which slice of the model's matrix this is; {0}: all of it */
  bool is_looked_up;          /* by rows only, no linear multiplies by it: an embedding that is not tied */
} td_weight_part;

/* i of element (row, col) of a made-up part. */
static inline uint64_t td_weight_part_element(const td_weight_part *p, uint64_t n_cols, uint64_t row,
                                              uint64_t col)
{
  return p->first_element + row * (p->row_elements ? p->row_elements : n_cols) + col;
}

/* Bytes from one row of a part to the next; false: its rows are no whole blocks. */
static inline bool td_weight_part_stride(const td_weight_part *p, uint64_t n_cols, uint64_t *bytes)
{
  return td_dtype_row_bytes(p->dtype, p->row_elements ? p->row_elements : n_cols, bytes);
}

#endif
