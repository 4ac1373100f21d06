// A program as this backend runs it, and the files that read its ops.
#pragma once

#include "kernels/cuda/graphs.cuh"
#include "kernels/cuda/internal.cuh"

// What a td_compiled * points to.
struct cuda_program {
  std::vector<td_op> ops; // a linear followed by SwiGLU is one op, which keeps gate_up
  uint32_t n_unsampled;   // as in td_program
  uint32_t page_tokens;   // of the KV store that its ops use
  cuda_graphs captured;
  struct cuda_tuner *tuner; // null: tuning has not begun
};

static inline cuda_program *program_of(td_compiled *compiled) { return (cuda_program *)compiled; }

// program.cu
td_status td_cuda_compile(td_backend *be, const td_program *program, td_compiled **out, td_error *err);
void td_cuda_discard(td_backend *be, td_compiled *compiled);
void td_cuda_run(cuda_backend *b, const cuda_program &p); // runs the current plan, op by op
void td_cuda_run_op(cuda_backend *b, const td_op &o);
td_linear_params
td_cuda_gate_up_linear(const td_linear_swiglu_params &g); // the first of the two ops it replaces

// capture.cu
td_status td_cuda_capture(td_backend *be, td_compiled *compiled, uint32_t least_rows, uint32_t n_rows,
                          td_capture *out, td_error *err);
bool td_cuda_launch_captured(cuda_backend *b,
                             cuda_program *p); // launches the current plan; false: no captured step fits
void td_cuda_free_captured(cuda_program *p);
// Runs a step with grids for n_rows decodes and true counts of zero, and waits for its end.
td_status td_cuda_run_empty_step(cuda_backend *b, uint32_t n_rows, const cuda_program &p, td_error *err);

// cublaslt_tune.cu
td_status td_cuda_tune_begin(td_backend *be, td_compiled *compiled, const char *cache_folder, td_tuning *out,
                             td_error *err);
td_status td_cuda_tune(td_backend *be, td_compiled *compiled, td_tuning *out, td_error *err);
void td_cuda_tune_end(td_backend *be, td_compiled *compiled, td_tuning *out);
void td_cuda_free_tuner(cuda_program *p);
