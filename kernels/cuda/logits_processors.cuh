// What a step's sampling has beside plain rows: entries with sampler state or a mask, and entries whose
// log-probabilities are wanted. logits_processors.cu keeps it, sample.cu and logprob.cu read it.
//
// The host knows before it queues a sampling which entries these are. A step without any queues what it
// always did. Else one copy goes up with lists of them, beside the forward, on a stream of its own: 256 masks
// are 4 MB. Special entries are of two kinds, each with a kernel of its own: those that have a mask and no
// state, and those that have state. sample_kernel leaves both out, as it does those that are late.
#pragma once

#include "kernels/cuda/internal.cuh"

extern "C" {
#include "kernels/sampler_cache.h"
}

struct special_entry {
  uint32_t entry; // of the plan's logits
  uint32_t state; // its slot's; TD_NO_STATE: the entry is in masked
  uint32_t mask;  // among the step's masks, or NO_MASK
};
enum : uint32_t { NO_MASK = UINT32_MAX };

struct logprob_want {
  uint32_t entry;
  int32_t id; // TD_SAMPLE_HERE: the one that was chosen
  uint32_t n_top;
};

// What goes up for one step's sampling, and comes back; two of them take turns, as step blocks do.
struct sampling_block {
  unsigned char *up;          // pinned, laid out as sampling_extra::device
  td_token_logprob *logprobs; // pinned, [max_logits][TD_STEP_IDS]
  td_top_token *top;          // pinned, [max_logits][TD_TOP_TOKENS_MAX]
  uint32_t n_wants, top_stride;
};

struct sampling_extra {
  td_sampler_cache cache;
  td_sample_state *states; // device, [n_states]
  uint16_t *words;         // device, [n_states][max_vocab]
  td_sample_state *state_host;
  uint16_t *words_host; // [max_vocab]; these two: a state in the making

  sampling_block blocks[2];
  cudaStream_t copies;   // what goes up
  cudaEvent_t went_up;   // on that stream
  cudaEvent_t was_read;  // on the device's stream: the next copy may go up
  unsigned char *device; // what went up, each where its pointer says
  size_t device_bytes;
  uint8_t *skip;           // [max_logits] nonzero: sample_kernel leaves it out
  special_entry *masked;   // [max_rows]
  special_entry *stateful; // [max_rows]
  logprob_want *wants;     // [max_logits]
  uint32_t *masks;         // [max_rows][mask_words]
  uint32_t mask_words;
  td_token_logprob *logprobs; // device, [max_logits][TD_STEP_IDS]
  td_top_token *top;          // device, [max_logits][top_stride]

  // of the sampling that is being queued
  uint32_t n_skipped, n_masked, n_stateful, n_wants, top_stride;
};

// logits_processors.cu
td_status td_cuda_make_sampling(cuda_backend *b, td_error *err);
void td_cuda_free_sampling(cuda_backend *b);
void td_cuda_prepare_slot(td_backend *be, uint32_t slot, const td_sampling *sampling,
                          const td_sample_history *history);
// Before a step's sampling is queued, behind it, and when it has ended.
void td_cuda_begin_sampling(cuda_backend *b, uint32_t block, const td_plan *plan,
                            const td_sample_input *input);
void td_cuda_end_sampling(cuda_backend *b, uint32_t block, const td_plan *plan);
void td_cuda_read_sampling(const cuda_backend *b, uint32_t block, td_outcome *out);

// logprob.cu
void td_cuda_logprobs(cuda_backend *b, const float *logits, uint32_t vocab);
