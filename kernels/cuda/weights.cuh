// Weights on the device, and those on their way (weights.cu).
//
// Owner: the backend. Life: from weight_import to the backend's end; what loads them from the first import to
// weights_wait.
#pragma once

#include "kernels/cuda/kernel.cuh"

#include <cuda.h>

#include <vector>

extern "C" {
#include "kernels/kernels.h"
}

struct cuda_backend;

// How products of few rows walk over a weight (stream_product.cu). tile_rows 0: they go another way.
struct td_stream_plan {
  CUtensorMap map;
  uint32_t tile_rows, slices;
};

struct td_weight {
  bf16 *data; // [n_out, n_in], parts one after another
  bf16 *bias; // [n_out] or null
  uint32_t n_out, n_in;
  td_stream_plan stream;
};

struct cuda_weights {
  std::vector<td_weight *> all;
  struct weight_lanes *loading; // between the first import and weights_wait
};

td_status td_cuda_weight_import(td_backend *be, const td_weight_part *parts, uint32_t n_parts,
                                uint64_t n_cols, td_weight **out, td_error *err);
td_status td_cuda_weights_wait(td_backend *be, td_error *err);
void td_cuda_weights_abandon(cuda_weights *w); // the end of a start that failed
