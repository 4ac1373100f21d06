// Log-probabilities on the device, by the definition in kernels/logprob_math.h: the same bits as on the CPU.
//
// A CTA computes one logits entry, after the sampling, which leaves the model's logits unchanged. The row is
// cut into as many chunks as the CTA has threads. One pass finds each chunk's best token and whether the row
// has NaN or +inf; a second pass adds up the weights. After that, each of the likeliest tokens costs one
// reduction: the best of all chunks' best is taken, and its chunk is searched for the next token below it.
#include "kernels/cuda/logits_processors.cuh"
#include "kernels/logprob_math.h"

enum { LOGPROB_THREADS = 512, LOGPROB_WARPS = LOGPROB_THREADS / 32 };

typedef unsigned long long rank64;

struct logprob_shared {
  rank64 chunk_best[LOGPROB_THREADS];
  rank64 warp_best[2][LOGPROB_WARPS]; // in alternation, so that a round needs one barrier
  rank64 warp_sums[LOGPROB_WARPS];
};

static __device__ __forceinline__ rank64 warp_best_of(rank64 v)
{
  for (int o = 16; o > 0; o >>= 1)
    v = max(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// The best token of chunk c that is below `below`, in every lane of the warp; 0: none. *bad: set if a NaN or
// +inf was found.
static __device__ rank64 best_of_chunk(const float *x, uint32_t n, uint32_t len, uint32_t c, rank64 below,
                                       bool *bad)
{
  rank64 best = 0;
  for (uint32_t i = threadIdx.x % 32; i < len && c * len + i < n; i += 32) {
    float v = x[c * len + i];
    rank64 rank = td_logprob_rank(v, c * len + i);
    *bad |= !(v < INFINITY);
    best = rank < below && rank > best ? rank : best;
  }
  return warp_best_of(best);
}

static __device__ rank64 best_of_warps(const rank64 *warp_best)
{
  rank64 best = 0;
  for (uint32_t w = 0; w < LOGPROB_WARPS; w++)
    best = max(best, warp_best[w]);
  return best;
}

static __device__ double log_sum_of(const float *x, uint32_t n, float max_logit, logprob_shared *s)
{
  rank64 sum = 0;
  for (uint32_t i = threadIdx.x; i < n; i += LOGPROB_THREADS)
    sum += td_logprob_weight(x[i], max_logit);
  for (int o = 16; o > 0; o >>= 1)
    sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (threadIdx.x % 32 == 0)
    s->warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (uint32_t w = 0; w < LOGPROB_WARPS; w++)
    sum += s->warp_sums[w];
  return td_logprob_of_sum(sum);
}

static __device__ void write_nan(const logprob_request &request, td_token_logprob *out, td_top_token *top)
{
  if (threadIdx.x == 0)
    *out = {NAN};
  if (threadIdx.x < request.n_top)
    top[threadIdx.x] = {(int32_t)threadIdx.x, NAN};
}

__global__ void __launch_bounds__(LOGPROB_THREADS)
    logprob_kernel(const float *logits, uint32_t n, const logprob_request *logprob_requests,
                   const int32_t *sampled, td_token_logprob *out, td_top_token *top, uint32_t top_stride)
{
  __shared__ logprob_shared s;
  pdl_launch_dependents();
  pdl_wait();
  const logprob_request request = logprob_requests[blockIdx.x];
  const float *x = logits + (size_t)request.entry * n;
  uint32_t warp = threadIdx.x / 32, len = (n + LOGPROB_THREADS - 1) / LOGPROB_THREADS;
  bool bad = false;
  out += request.entry * TD_STEP_IDS;
  top += (size_t)request.entry * top_stride;
  for (uint32_t c = warp; c < LOGPROB_THREADS; c += LOGPROB_WARPS) {
    rank64 best = best_of_chunk(x, n, len, c, ~0ull, &bad);
    if (threadIdx.x % 32 == 0)
      s.chunk_best[c] = best;
  }
  bad = __syncthreads_or(bad);
  rank64 mine = s.chunk_best[threadIdx.x], best = warp_best_of(mine);
  if (threadIdx.x % 32 == 0)
    s.warp_best[1][warp] = best;
  __syncthreads();
  float max_logit = td_logprob_logit_of_rank(best_of_warps(s.warp_best[1]));
  if (bad || !(max_logit > -INFINITY)) {
    write_nan(request, out, top);
    return;
  }
  double log_sum = log_sum_of(x, n, max_logit, &s);
  int32_t id = request.id == TD_SAMPLE_HERE ? sampled[request.entry * TD_STEP_IDS] : request.id;
  if (threadIdx.x == 0)
    *out = {id >= 0 ? td_logprob(x[id], max_logit, log_sum) : NAN};
  for (uint32_t k = 0; k < request.n_top; k++) {
    best = warp_best_of(mine);
    if (threadIdx.x % 32 == 0)
      s.warp_best[k % 2][warp] = best;
    __syncthreads();
    best = best_of_warps(s.warp_best[k % 2]);
    uint32_t best_id = td_logprob_id_of_rank(best), c = best_id / len;
    if (threadIdx.x == 0)
      top[k] = {(int32_t)best_id, td_logprob(td_logprob_logit_of_rank(best), max_logit, log_sum)};
    if (warp == c / 32) {
      best = best_of_chunk(x, n, len, c, best, &bad);
      mine = threadIdx.x == c ? best : mine;
    }
  }
}

void td_cuda_logprobs(cuda_backend *b, const float *logits, uint32_t vocab)
{
  const logits_processors *e = b->sampling.processors;
  queue_kernel(&b->device, logprob_kernel, e->n_logprob_requests, LOGPROB_THREADS, 0, logits, vocab,
               (const logprob_request *)e->logprob_requests, (const int32_t *)b->frame.sampled, e->logprobs,
               e->top, e->top_stride);
}
