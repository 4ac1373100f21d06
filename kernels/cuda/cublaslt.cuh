// Linears by cuBLASLt: what gemm_cublaslt.cu (runs them) and cublaslt_tune.cu (tunes them) share.
#pragma once

#include "kernels/cuda/internal.cuh"

#include <memory>

extern "C" {
#include "kernels/cuda/cublaslt_cache.h"
}

enum { LT_WORKSPACE_BYTES = 64 << 20, LT_CANDIDATES = 12 };
enum { INVARIANT_ROWS = 256 }; // with batch_invariant, the algorithm for this many rows serves all row counts

// A linear of n rows of one shape: everything that stays the same between calls.
struct lt_linear {
  cublasLtMatrixLayoutOpaque_t x, out;
  cublasLtMatmulAlgo_t algo;
  bool made, usable;
};

struct lt_shape {
  uint32_t n_out, n_in;
  bool f32, bias;
  cublasLtMatmulDescOpaque_t op;
  cublasLtMatrixLayoutOpaque_t weight;
  lt_linear fixed;             // with batch_invariant: the one whose algorithm serves every row count
  std::vector<lt_linear> by_n; // [max_n + 1], sized ahead: a step allocates nothing
};

struct lt_tables {
  std::vector<std::unique_ptr<lt_shape>> shapes; // few, so searched linearly
  td_lt_cache cache;
};

lt_shape *td_lt_shape(cuda_backend *b, const td_cuda_weight *w, bool f32);
// Chooses an algorithm for every bucket of rows. With batch_invariant it chooses one for all row counts, or
// fails if none serves.
td_status td_lt_prepare(cuda_backend *b, lt_shape *s, td_error *err);
// Chooses again for one bucket, after tuning has changed its entry.
void td_lt_reselect(cuda_backend *b, lt_shape *s, uint32_t bucket);
lt_linear *td_lt_linear_of(cuda_backend *b, lt_shape *s, uint32_t n); // for n rows; made on first use
bool td_lt_layouts(const lt_shape *s, uint32_t n, lt_linear *out);
// Asks the library's heuristic for up to `max` algorithms for this linear, best first. reductions: which
// split-k reductions are allowed, a mask of cublasLtReductionScheme_t; either f32 (COMPUTE_TYPE) or none.
int td_lt_guess(cuda_backend *b, lt_shape *s, lt_linear *p, uint32_t reductions, int max,
                cublasLtMatmulHeuristicResult_t *out);
cublasStatus_t td_lt_queue(cuda_backend *b, lt_shape *s, lt_linear *p, const td_cuda_weight *w, const void *x,
                           void *out, bool add, const cublasLtMatmulAlgo_t *algo);
