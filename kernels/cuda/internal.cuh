// The backend as the files of kernels/cuda/ see it: its parts and the ops. Each part has a header that says
// who owns it and how long it lives.
//
//   device.cuh              device, stream, memory                       device.cu
//   frame.cuh               what one step sends up and gets back         step.cu
//   sampling.cuh            sampler state of the slots                   step.cu, sample.cu
//   logits_processors.cuh   logits entries that are not plain            logits_processors.cu, sample.cu,
//                                                                        logprob.cu
//   attention_group.cuh     KV stores, KV groups, attention modes        attention_group.cu
//   weights.cuh             weights, loaded and being loaded             weights.cu
//   linears.cuh             what linears need besides weights            linear.cu, gemm_*.cu
//   graphs.cuh              captured steps of a compiled program         capture.cu
//   program.cuh             compiled programs                            program.cu
//   attention.cuh           attention's kernels; attention_*.cuh are parts of them
//   kernel.cuh              what all kernels use
//   mbarrier.cuh, tma.cuh, wgmma.cuh, ring.cuh   Hopper's instructions
//
// Activations are bf16, sums are f32. All ops go to one stream; td_cuda_wait waits for a step's end.
#pragma once

#include "kernels/cuda/attention_group.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/frame.cuh"
#include "kernels/cuda/linears.cuh"
#include "kernels/cuda/sampling.cuh"
#include "kernels/cuda/weights.cuh"

#include <type_traits>

extern "C" {
#include "kernels/cuda/cuda_backend.h"
}

struct cuda_backend {
  td_backend base; // first: the C side sees this
  td_backend_config config;
  cuda_device device;
  cuda_weights weights;
  cuda_linears linears;
  cuda_attention attention;
  cuda_sampling sampling;
  cuda_frame frame;
};
static_assert(std::is_standard_layout<cuda_backend>::value, "so base is where the backend is");

static inline cuda_backend *self(td_backend *be) { return (cuda_backend *)be; }
template <typename T> static inline T *at(td_devptr p) { return (T *)p.addr; }

// step.cu
td_status td_cuda_make_step_memory(cuda_backend *b, td_error *err);
td_status td_cuda_fit_packed(cuda_backend *b, td_error *err); // grows the packed plan to hold all KV groups
void td_cuda_free_step_memory(cuda_backend *b);
void td_cuda_submit(td_backend *be, td_compiled *forward, const td_plan *plan);
void td_cuda_sample_step(td_backend *be, td_compiled *sampling, const td_sample_input *input);
bool td_cuda_forward_ended(td_backend *be);
td_status td_cuda_wait(td_backend *be, td_outcome *out, td_error *err);
void td_cuda_set_sampling(td_backend *be, uint32_t slot, const td_sampling *sampling);

// ops
#define TD_OP(KIND, name) void td_cuda_##name(cuda_backend *b, const td_##name##_params *p, uint32_t n_rows);
#include "kernels/ops.def"
