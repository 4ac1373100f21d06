// What linears need besides their weights, and which files compute them (README.md has the table).
//
// Owner: the backend. Lifetime: the backend's.
#pragma once

#include "kernels/cuda/weights.cuh"

#include <cublasLt.h>

// cuTensorMapEncodeTiled, looked up at run time because the program does not link the driver.
typedef CUresult (*encode_tensor_map)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                      const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                      const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

struct cuda_linears {
  cublasLtHandle_t lt;
  void *lt_workspace;
  struct lt_tables *lt_tables;   // cublaslt.cuh
  encode_tensor_map encode_map;  // null: none of gemm_fused, gemm_skinny* and gemm_swiglu can run
  bool has_skinny_swiglu;        // gemm_skinny_swiglu.cu can run
  uint32_t gemm_swiglu_clusters; // clusters of gemm_swiglu.cu that run at once; 0: it cannot run here
  float *fused_sums;             // see fused.cuh; null: fused steps cannot run
};

// An op's parameters and its row count in the current step.
template <typename P> struct params_with_rows : P {
  uint32_t n;
};

// gemm_cublaslt.cu
td_status td_lt_open(cuda_backend *b, td_error *err);
void td_lt_close(cuda_backend *b);
void td_lt_linear(cuda_backend *b, const params_with_rows<td_linear_params> *p);

// gemm_skinny.cu
td_status td_skinny_open(cuda_backend *b, td_error *err);
// Encodes a tensor map. dims, strides (in bytes) and box are those of cuTensorMapEncodeTiled. Boxes are 64
// columns wide, with 128-byte swizzle. L2 promotion to 256 bytes would cost 6 % of memory bandwidth.
bool td_skinny_encode_map(cuda_backend *b, CUtensorMap *map, td_dtype type, uint32_t rank, const void *data,
                          const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box);
void td_skinny_plan_weight(cuda_backend *b, td_cuda_weight *w);
bool td_skinny_linear(cuda_backend *b,
                      const params_with_rows<td_linear_params> *p); // false: not done
uint32_t td_skinny_rows_max(const td_cuda_weight *w);               // 0: it cannot serve this weight
// Picks a tile's number of weight rows: a multiple of unit, at most `most`. It minimises the work of the
// busiest SM, where each tile also has a small fixed cost.
uint32_t td_skinny_tile_rows(uint32_t n_out, uint32_t n_sms, uint32_t unit, uint32_t most);

// gemm_fused.cu
bool td_fused_linear(cuda_backend *b, const params_with_rows<td_linear_params> *p); // false: not done

// gemm_skinny_swiglu.cu: the same contracts as td_gemm_swiglu_* below
td_status td_skinny_swiglu_open(cuda_backend *b, td_error *err);
bool td_skinny_swiglu_is_faster(const cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p);
bool td_skinny_swiglu_linear(cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p,
                             bool forced);

// gemm_swiglu.cu
td_status td_gemm_swiglu_open(cuda_backend *b, td_error *err);
bool td_gemm_swiglu_serves(const cuda_backend *b, const td_cuda_weight *w,
                           uint32_t width); // for some row counts
bool td_gemm_swiglu_is_faster(const cuda_backend *b,
                              const params_with_rows<td_linear_swiglu_params> *p); // than two ops
// Returns false if it did nothing. forced: also run where two ops would be faster, for any row count that the
// kernel can do.
bool td_gemm_swiglu_linear(cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p, bool forced);

// linear.cu
uint32_t
td_cuda_lt_rows_min(const td_cuda_weight *w); // the least row count that single linears send to cuBLASLt
