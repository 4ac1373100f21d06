// Pooling: one vector for each sequence, made of its tokens chunk by chunk. A thread computes one element and
// adds tokens in order in f64, so the result does not depend on how the prompt is cut into chunks.
#include "kernels/cuda/internal.cuh"

enum { POOL_THREADS = 128 };

__global__ void pool_kernel(const bf16 *x, device_batch batch, td_pooling pooling, double *sums, float *out,
                            uint32_t width)
{
  uint32_t i = blockIdx.x * POOL_THREADS + threadIdx.x;
  pdl_launch_dependents();
  pdl_wait();
  if (i >= width || blockIdx.y >= batch.counts[COUNT_ROWS]) // a dummy step has no true rows
    return;
  td_plan_row r = batch.rows[blockIdx.y];
  const bf16 *at = x + (size_t)r.q_start * width + i;
  size_t element = (size_t)r.slot * width + i;
  if (pooling == TD_POOL_LAST) {
    out[element] = __bfloat162float(at[(size_t)(r.q_len - 1) * width]);
    return;
  }
  double sum = r.q_len == r.kv_len ? 0 : sums[element];
  for (uint32_t t = 0; t < r.q_len; t++)
    sum += (double)__bfloat162float(at[(size_t)t * width]);
  sums[element] = sum;
  out[element] = (float)(sum / r.kv_len);
}

void td_cuda_pool(cuda_backend *b, const td_pool_params *p, uint32_t n_rows)
{
  dim3 grid((p->width + POOL_THREADS - 1) / POOL_THREADS, b->frame.plan->n_rows);
  queue_kernel(&b->device, pool_kernel, grid, POOL_THREADS, 0, at<bf16>(p->x), b->frame.batch, p->pooling,
               at<double>(p->sums), at<float>(p->out), p->width);
}
