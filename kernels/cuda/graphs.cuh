// Captured steps: CUDA graphs of decode steps (capture.cu).
//
// Owner: a compiled program. Life: from td_backend_ops.capture until the program is discarded; what a graph
// points to (weights, buffers, KV stores, the frame) lives as long.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

struct attention_group;

// A kernel of a captured step, as it is now; most_blocks: as it was captured.
struct captured_kernel {
  cudaGraphNode_t node;
  cudaKernelNodeParams params;
  uint32_t most_blocks;
  const attention_group *group; // whose decodes it does
};

struct captured_step {
  uint32_t least_rows, n_rows; // of the steps that are launched from it; n_rows: of its grids
  bool of_plan;      // its attention is by a plan of what rows share; else none of the step's rows may share
                     // anything
  cudaGraph_t graph; // kept: what the params of `decodes` point to is its nodes'
  cudaGraphExec_t exec;
  std::vector<captured_kernel> decodes; // attention for decodes, one a layer
};

typedef std::vector<captured_step> cuda_graphs;
