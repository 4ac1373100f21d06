// Weights on the device, and the loading of weights (weights.cu).
//
// Owner: the backend. Lifetime: from weight_import to the backend's end. The loader exists from the first
// import to weights_wait.
#pragma once

#include "kernels/cuda/kernel.cuh"

#include <cuda.h>

#include <vector>

extern "C" {
#include "kernels/kernels.h"
}

struct cuda_backend;

// How the GEMMs of few rows cut a weight into tiles (gemm_skinny.cu). tile_rows 0: they cannot serve this
// weight.
struct td_skinny_plan {
  CUtensorMap map;
  uint32_t tile_rows, stage_k_tiles;
};

// What a td_weight * points to. All parts have the type that td_cuda_weight_type returns, so far always bf16.
// Other types would need another `data` and other kernels.
struct td_cuda_weight : td_weight {
  bf16 *data; // [n_out, n_in]; the rows of all parts, part after part
  bf16 *bias; // [n_out] or null
  td_skinny_plan skinny;
};

static inline const td_cuda_weight *cuda_weight(const td_weight *w) { return (const td_cuda_weight *)w; }
// Whether a weight has this type. Kernels check it because each of them handles one type only.
static inline bool is_of_type(const td_weight *w, td_dtype storage, td_dtype compute)
{
  return w->types[0].storage == storage && w->types[0].compute == compute;
}

struct cuda_weights {
  std::vector<td_cuda_weight *> all;
  struct weight_uploaders *loading; // between the first import and weights_wait
};

td_weight_type td_cuda_weight_type(const td_backend *be, td_dtype stored);
td_status td_cuda_weight_import(td_backend *be, const td_weight_part *parts, uint32_t n_parts,
                                uint64_t n_cols, td_weight **out, td_error *err);
td_status td_cuda_weights_wait(td_backend *be, td_error *err);
void td_cuda_weights_abandon(cuda_weights *w); // cleanup after a start that failed
