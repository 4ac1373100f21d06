// Sampling on the device: the launches. sample_row.cuh has the algorithm, kernels/sample_math.h the
// definition.
//
// Few rows are divided over clusters of up to 8 CTAs, so that they fill the device. A GPU without clusters
// uses one CTA for each row. The grid may have more rows than the step (captured steps); surplus CTAs end
// immediately.
#include <cooperative_groups.h>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/logits_processors.cuh"

// The address of the same object in the shared memory of another CTA of the cluster.
template <typename T> static __device__ __forceinline__ T *peer(T *p, uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().map_shared_rank(p, rank);
#else
  return p;
#endif
}

static __device__ __forceinline__ float max_or_nan(float a, float b)
{
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}

#include "kernels/cuda/sample_row.cuh"

__global__ void __launch_bounds__(SAMPLE_THREADS, 2)
    sample_kernel(const float *logits, uint32_t n, uint32_t n_ctas, device_batch batch,
                  const td_sampling *sampling, const uint8_t *skip, int32_t *out)
{
  __shared__ sample_shared s;
  uint32_t i = blockIdx.x / n_ctas, rank = blockIdx.x % n_ctas;
  pdl_launch_dependents();
  pdl_wait();
  if (i >= *batch.n_logits || batch.logits[i].target != TD_SAMPLE_HERE || (skip && skip[i]))
    return;
  if (n_ctas > 1)
    cluster_arrive();
  const td_plan_row *row = &batch.rows[batch.logits[i].row];
  sample_one_row(sample_row(), logits + (size_t)i * n, n, rank, n_ctas, &row->slot, &row->kv_len, sampling,
                 &s, out + i);
}

// Samples special rows; fill() sets their state and mask (logits_processors.cuh).
template <typename ROW, typename FILL>
static __device__ __forceinline__ void
sample_special(const special_entry *entries, const float *logits, uint32_t n, uint32_t n_ctas,
               device_batch batch, const td_sampling *sampling, sample_shared *s, int32_t *out, FILL fill)
{
  pdl_launch_dependents();
  pdl_wait();
  if (n_ctas > 1)
    cluster_arrive();
  const special_entry e = entries[blockIdx.x / n_ctas];
  const td_plan_row *row = &batch.rows[batch.logits[e.entry].row];
  ROW r;
  fill(&r, e, row);
  sample_one_row(r, logits + (size_t)e.entry * n, n, blockIdx.x % n_ctas, n_ctas, &row->slot, &row->kv_len,
                 sampling, s, out + e.entry);
}

__global__ void __launch_bounds__(SAMPLE_THREADS, 2)
    masked_sample_kernel(const float *logits, uint32_t n, uint32_t n_ctas, device_batch batch,
                         const td_sampling *sampling, const special_entry *entries, const uint32_t *masks,
                         uint32_t mask_words, int32_t *out)
{
  __shared__ sample_shared s;
  sample_special<masked_row>(entries, logits, n, n_ctas, batch, sampling, &s, out,
                             [&](masked_row *r, special_entry e, const td_plan_row *) {
                               r->mask = masks + (size_t)e.mask * mask_words;
                             });
}

struct sampler_states {
  const td_sample_state *states;
  uint16_t *words;
  uint32_t words_stride;
};

__global__ void __launch_bounds__(SAMPLE_THREADS, 1)
    stateful_sample_kernel(const float *logits, uint32_t n, uint32_t n_ctas, device_batch batch,
                           const td_sampling *sampling, const special_entry *entries, const uint32_t *masks,
                           uint32_t mask_words, sampler_states all, int32_t *out)
{
  __shared__ sample_shared s;
  sample_special<stateful_row>(entries, logits, n, n_ctas, batch, sampling, &s, out,
                               [&](stateful_row *r, special_entry e, const td_plan_row *row) {
                                 r->state = all.states + e.state;
                                 r->words = all.words + (size_t)e.state * all.words_stride;
                                 r->mask = e.mask != NO_MASK ? masks + (size_t)e.mask * mask_words : nullptr;
                                 r->n_tokens = row->kv_len;
                               });
}

// CTAs for each row: enough to fill the device once, with two CTAs on an SM. All SMs of a cluster must be in
// one GPC, which leaves some SMs out: hence 7/8.
static uint32_t ctas_per_row(const cuda_backend *b, uint32_t n_rows)
{
  uint32_t n = SAMPLE_CTAS_MAX;
  while (n > 1 && n_rows * n > 2 * (uint32_t)b->device.n_sms * 7 / 8)
    n /= 2;
  return b->device.has_clusters ? n : 1;
}

template <typename... P, typename... A>
static void queue_sample_kernel(cuda_backend *b, void (*kernel)(P...), uint32_t n_rows, uint32_t n_ctas,
                                A... args)
{
  cudaLaunchAttribute attrs[2] = {};
  cudaLaunchConfig_t config = {};
  attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attrs[0].val.programmaticStreamSerializationAllowed = 1;
  attrs[1].id = cudaLaunchAttributeClusterDimension;
  attrs[1].val.clusterDim = {n_ctas, 1, 1};
  config.gridDim = n_rows * n_ctas;
  config.blockDim = SAMPLE_THREADS;
  config.stream = b->device.stream;
  config.attrs = attrs;
  config.numAttrs = !b->device.has_clusters ? 0 : n_ctas == 1 ? 1 : 2;
  record_error(&b->device, cudaLaunchKernelEx(&config, kernel, P(args)...));
}

void td_cuda_sample(cuda_backend *b, const td_sample_params *p, uint32_t n_rows)
{
  const logits_processors *e = b->sampling.processors;
  const float *logits = at<float>(p->logits);
  uint32_t n_ctas = ctas_per_row(b, n_rows);
  if (e->n_skipped < n_rows)
    queue_sample_kernel(b, sample_kernel, n_rows, n_ctas, logits, p->vocab, n_ctas, b->frame.batch,
                        b->sampling.slots, e->n_skipped > 0 ? e->skip : nullptr, b->frame.sampled);
  if (e->n_masked > 0) {
    n_ctas = ctas_per_row(b, e->n_masked);
    queue_sample_kernel(b, masked_sample_kernel, e->n_masked, n_ctas, logits, p->vocab, n_ctas,
                        b->frame.batch, b->sampling.slots, e->masked, e->masks, e->mask_words,
                        b->frame.sampled);
  }
  if (e->n_stateful > 0) {
    sampler_states all = {e->states, e->words, b->config.max_vocab};
    n_ctas = ctas_per_row(b, e->n_stateful);
    queue_sample_kernel(b, stateful_sample_kernel, e->n_stateful, n_ctas, logits, p->vocab, n_ctas,
                        b->frame.batch, b->sampling.slots, e->stateful, e->masks, e->mask_words, all,
                        b->frame.sampled);
  }
  if (e->n_logprob_requests > 0)
    td_cuda_logprobs(b, logits, p->vocab);
}
