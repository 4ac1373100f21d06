// Linears by cuBLASLt: what gemm_cublaslt.cu (runs them) and cublaslt_tune.cu (measures them) share.
#pragma once

#include "kernels/cuda/internal.cuh"

#include <memory>

extern "C" {
#include "kernels/cuda/cublaslt_cache.h"
}

enum { LT_WORKSPACE_BYTES = 64 << 20, LT_CANDIDATES = 12 };
enum { INVARIANT_ROWS = 256 }; // the number of rows whose algorithm serves all with batch_invariant

// A linear of n rows of one shape: everything that does not change between calls.
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
  lt_linear fixed;             // with batch_invariant: its algorithm serves every number of rows
  std::vector<lt_linear> by_n; // [max_n + 1]: nothing is allocated in a step
};

struct lt_tables {
  std::vector<std::unique_ptr<lt_shape>> shapes; // a handful
  td_lt_cache cache;
};

lt_shape *td_lt_shape(cuda_backend *b, const td_cuda_weight *w, bool f32);
// Chooses an algorithm for every bucket of rows; with batch_invariant, for every number of rows, or fails.
td_status td_lt_prepare(cuda_backend *b, lt_shape *s, td_error *err);
// The same for one bucket, when what is known of it has changed.
void td_lt_renew(cuda_backend *b, lt_shape *s, uint32_t bucket);
lt_linear *td_lt_linear_of(cuda_backend *b, lt_shape *s, uint32_t n); // n rows; made if there is none yet
bool td_lt_layouts(const lt_shape *s, uint32_t n, lt_linear *out);
// Up to max algorithms of the library's own guess for this linear, best guess first; reductions: which ways
// to sum a k that is split between blocks may be used, a mask of cublasLtReductionScheme_t: in f32
// (COMPUTE_TYPE), or none.
int td_lt_guess(cuda_backend *b, lt_shape *s, lt_linear *p, uint32_t reductions, int max,
                cublasLtMatmulHeuristicResult_t *out);
cublasStatus_t td_lt_queue(cuda_backend *b, lt_shape *s, lt_linear *p, const td_cuda_weight *w, const void *x,
                           void *out, bool add, const cublasLtMatmulAlgo_t *algo);
