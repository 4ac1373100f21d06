// What a step's sampling needs besides plain entries: entries with sampler state or a mask, and entries whose
// log-probabilities are wanted. logits_processors.cu maintains it, sample.cu and logprob.cu read it.
//
// The host knows which entries these are before it queues the sampling. A step without any of them queues
// only sample_kernel. Otherwise one copy with lists of them goes up beside the forward, on its own stream
// (256 masks are 4 MB). There are two kinds of special entries, each with its own kernel: entries with a mask
// and no state, and entries with state. sample_kernel skips both, and late entries as well.
#pragma once

#include "kernels/cuda/internal.cuh"

extern "C" {
#include "kernels/sampler_cache.h"
}

struct special_entry {
  uint32_t entry; // index among the plan's logits entries
  uint32_t state; // state of the entry's slot; TD_NO_STATE: the entry is in `masked`
  uint32_t mask;  // index among the step's masks, or NO_MASK
};
enum : uint32_t { NO_MASK = UINT32_MAX };

struct logprob_request {
  uint32_t entry;
  int32_t id; // TD_SAMPLE_HERE: the sampled id
  uint32_t n_top;
};

// What goes up for one step's sampling, and what comes back. There are two in alternation, like step buffers.
struct sampling_buffer {
  unsigned char *staging;     // pinned, same layout as logits_processors::device
  td_token_logprob *logprobs; // pinned, [max_logits][TD_STEP_IDS]
  td_top_token *top;          // pinned, [max_logits][TD_TOP_TOKENS_MAX]
  uint32_t n_logprob_requests, top_stride;
};

struct logits_processors {
  td_sampler_cache cache;
  td_sample_state *states; // device, [n_states]
  uint16_t *words;         // device, [n_states][max_vocab]
  td_sample_state *state_host;
  uint16_t *words_host; // [max_vocab]; these two: buffers in which a new state is made

  sampling_buffer buffers[2];
  cudaStream_t upload_stream; // stream of the copies to the device
  cudaEvent_t uploaded;       // recorded on that stream
  cudaEvent_t consumed;       // recorded on the device's stream: after it, the next copy may overwrite
  unsigned char *device;      // destination of the copy; the next pointers lead into it
  size_t device_bytes;
  uint8_t *skip;                     // [max_logits] nonzero: sample_kernel skips the entry
  special_entry *masked;             // [max_rows]
  special_entry *stateful;           // [max_rows]
  logprob_request *logprob_requests; // [max_logits]
  uint32_t *masks;                   // [max_rows][mask_words]
  uint32_t mask_words;
  td_token_logprob *logprobs; // device, [max_logits][TD_STEP_IDS]
  td_top_token *top;          // device, [max_logits][top_stride]

  // of the sampling that is being queued:
  uint32_t n_skipped, n_masked, n_stateful, n_logprob_requests, top_stride;
};

// logits_processors.cu
td_status td_cuda_make_sampling(cuda_backend *b, td_error *err);
void td_cuda_free_sampling(cuda_backend *b);
void td_cuda_prepare_slot(td_backend *be, uint32_t slot, const td_sampling *sampling,
                          const td_sample_history *history);
// begin: before a step's sampling is queued. end: after it was queued. read: when the step has ended.
void td_cuda_begin_sampling(cuda_backend *b, uint32_t buffer, const td_plan *plan,
                            const td_sample_input *input);
void td_cuda_end_sampling(cuda_backend *b, uint32_t buffer, const td_plan *plan);
void td_cuda_read_sampling(const cuda_backend *b, uint32_t buffer, td_outcome *out);

// logprob.cu
void td_cuda_logprobs(cuda_backend *b, const float *logits, uint32_t vocab);
