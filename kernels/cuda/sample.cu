// Token choice on the device: the launch. sample_row.cuh has the algorithm, kernels/sample_math.h the
// definition.
//
// Few rows are split over clusters of up to 8 blocks, so that the device is filled; a GPU without clusters
// takes one block per row. The grid may be larger than the step's true rows (captured steps): surplus blocks
// leave at once.
#include <cooperative_groups.h>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/internal.cuh"

// The same object in the shared memory of another block of the cluster.
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
    sample_kernel(const float *logits, uint32_t n, uint32_t n_blocks, device_batch batch,
                  const td_sampling *sampling, int32_t *out)
{
  __shared__ sample_shared s;
  uint32_t i = blockIdx.x / n_blocks, rank = blockIdx.x % n_blocks;
  let_next_start();
  wait_for_input();
  if (i >= *batch.n_logits)
    return;
  if (n_blocks > 1)
    cluster_arrive();
  const td_plan_row *row = &batch.rows[batch.logits_rows[i]];
  sample_one_row(logits + (size_t)i * n, n, rank, n_blocks, &row->slot, &row->kv_len, sampling, &s, out + i);
}

// As many blocks per row as fill the device once, with two blocks on a multiprocessor. A cluster needs its
// multiprocessors in one group, which leaves some of them out: hence 7/8.
static uint32_t blocks_per_row(const cuda_backend *b, uint32_t n_rows)
{
  uint32_t n = SAMPLE_BLOCKS_MAX;
  while (n > 1 && n_rows * n > 2 * (uint32_t)b->device.n_sms * 7 / 8)
    n /= 2;
  return b->device.has_clusters ? n : 1;
}

void td_cuda_sample(td_backend *be, const td_sample_params *p)
{
  cuda_backend *b = self(be);
  uint32_t n_rows = b->frame.plan->n_logits, n_blocks = blocks_per_row(b, n_rows);
  if (n_rows == 0)
    return;
  cudaLaunchAttribute attrs[2] = {};
  cudaLaunchConfig_t config = {};
  attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attrs[0].val.programmaticStreamSerializationAllowed = 1;
  attrs[1].id = cudaLaunchAttributeClusterDimension;
  attrs[1].val.clusterDim = {n_blocks, 1, 1};
  config.gridDim = n_rows * n_blocks;
  config.blockDim = SAMPLE_THREADS;
  config.stream = b->device.stream;
  config.attrs = attrs;
  config.numAttrs = !b->device.has_clusters ? 0 : n_blocks == 1 ? 1 : 2;
  note(&b->device,
       cudaLaunchKernelEx(&config, sample_kernel, (const float *)at<float>(p->logits), p->vocab, n_blocks,
                          b->frame.batch, (const td_sampling *)b->sampling.slots, b->frame.sampled));
}
