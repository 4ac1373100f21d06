// Captured steps: CUDA graphs of decode steps (capture.cu).
//
// Owner: a compiled program. Lifetime: from td_backend_ops.capture until the program is discarded. What a
// graph points to (weights, buffers, KV stores, the frame) must live as long.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

struct attention_group;

// A kernel node of a captured step with its current parameters. max_ctas: the grid as captured, its upper
// limit.
struct captured_kernel {
  cudaGraphNode_t node;
  cudaKernelNodeParams params;
  uint32_t max_ctas;
  const attention_group *group; // the KV group whose decodes this kernel computes
};

struct captured_step {
  uint32_t least_rows, n_rows; // row counts that it serves; the grids are for n_rows
  bool has_shared_prefixes;    // decodes use an attention plan with shared prefixes; if false, no rows of the
                               // step may share a prefix
  cudaGraph_t graph;           // kept because params in `decodes` point into its nodes
  cudaGraphExec_t exec;
  std::vector<captured_kernel> decodes; // decode attention, one kernel a layer
};

typedef std::vector<captured_step> cuda_graphs;
