// What linears need beside their weights, and which files do them (README.md has the table).
//
// Owner: the backend. Life: opened when it is created, closed at its end.
#pragma once

#include "kernels/cuda/weights.cuh"

#include <cublasLt.h>

// cuTensorMapEncodeTiled, found at run time: the program does not link the driver.
typedef CUresult (*encode_tensor_map)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                      const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                      const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

struct cuda_linears {
  cublasLtHandle_t lt;
  void *lt_workspace;
  struct lt_tables *lt_tables;  // cublaslt.cuh
  encode_tensor_map encode_map; // null: gemm_fused, _skinny, _skinny_swiglu and _swiglu.cu serve nothing
  bool has_tall;                // gemm_skinny_swiglu.cu serves
  uint32_t glu_clusters;        // that run at once; 0: gemm_swiglu.cu serves nothing here
  float *fused_sums;            // fused.cuh; null: not served here
};

// An op's params, and the rows that it has in the current step.
template <typename P> struct of_rows : P {
  uint32_t n;
};

// gemm_cublaslt.cu
td_status td_lt_open(cuda_backend *b, td_error *err);
void td_lt_close(cuda_backend *b);
void td_lt_linear(cuda_backend *b, const of_rows<td_linear_params> *p);

// gemm_skinny.cu
td_status td_stream_open(cuda_backend *b, td_error *err);
// Of a matrix whose rows are `strides` apart; boxes of 64 columns, swizzled. Promotion to 256 bytes would
// make memory give 6 % less.
bool td_stream_encode(cuda_backend *b, CUtensorMap *map, td_dtype type, uint32_t rank, const void *data,
                      const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box);
void td_stream_plan_weight(cuda_backend *b, td_cuda_weight *w);
bool td_stream_linear(cuda_backend *b,
                      const of_rows<td_linear_params> *p); // false: another way must be taken
uint32_t td_stream_rows_max(const td_cuda_weight *w);      // 0: it serves none
// Weight rows of a tile, a multiple of unit up to `most`, with which the busiest multiprocessor has the least
// to do; a tile costs a little itself.
uint32_t td_stream_tile_rows(uint32_t n_out, uint32_t n_sms, uint32_t unit, uint32_t most);

// gemm_fused.cu
bool td_fused_linear(cuda_backend *b, const of_rows<td_linear_params> *p); // false: another way must be taken

// gemm_skinny_swiglu.cu: as td_glu_'s below
td_status td_tall_open(cuda_backend *b, td_error *err);
bool td_tall_is_faster(const cuda_backend *b, const of_rows<td_linear_swiglu_params> *p);
bool td_tall_linear(cuda_backend *b, const of_rows<td_linear_swiglu_params> *p, bool must);

// gemm_swiglu.cu
td_status td_glu_open(cuda_backend *b, td_error *err);
bool td_glu_serves(const cuda_backend *b, const td_cuda_weight *w, uint32_t width); // in some steps at least
bool td_glu_is_faster(const cuda_backend *b, const of_rows<td_linear_swiglu_params> *p); // than two ops
// False: not done. must: for as many rows as the kernel can do, also where two ops are faster.
bool td_glu_linear(cuda_backend *b, const of_rows<td_linear_swiglu_params> *p, bool must);

// linear.cu
uint32_t
td_cuda_lt_rows_min(const td_cuda_weight *w); // from so many rows on products by themselves go to cuBLASLt
