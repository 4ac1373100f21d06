// Embedding, RMSNorm, SwiGLU and the gather of tokens that want logits. All are limited by memory: 16-byte
// accesses, sums in f32, and one pass if the row fits in registers.
#include "kernels/cuda/internal.cuh"

#include <algorithm>

// Row widths here are multiples of 8 elements (checked at load: widths are multiples of 32 or more).

__device__ __forceinline__ bf16x8 scaled(bf16x8 v, float scale)
{
  float f[8];
  unpack(v, f);
#pragma unroll
  for (int k = 0; k < 8; k++)
    f[k] *= scale;
  return pack(f);
}

// scale 0: no scaling
__global__ void embed_kernel(const bf16 *table, const int32_t *ids, bf16 *out, uint32_t width, float scale)
{
  pdl_launch_dependents();
  pdl_wait();
  const bf16x8 *src = (const bf16x8 *)(table + (size_t)ids[blockIdx.x] * width);
  bf16x8 *dst = (bf16x8 *)(out + (size_t)blockIdx.x * width);
  for (uint32_t i = threadIdx.x; i < width / 8; i += blockDim.x)
    dst[i] = scale == 0 ? src[i] : scaled(src[i], scale);
}

void td_cuda_embed(cuda_backend *b, const td_embed_params *p, uint32_t n_rows)
{
  queue_kernel(&b->device, embed_kernel, dim3(b->frame.plan->n_tokens), 128, 0, cuda_weight(p->weight)->data,
               b->frame.batch.token_ids, at<bf16>(p->out), p->width, p->scale);
}

enum {
  NORM_THREADS_MAX = 1024,
  NORM_CHUNKS_MAX = 2
};                               // up to 2 x 1024 x 8 = 16,384 elements stay in registers
enum { NORM_SM_THREADS = 1024 }; // threads of an SM that take part

template <int CHUNKS>
__device__ __forceinline__ void load_row(bf16x8 (&v)[CHUNKS], const bf16 *x, uint32_t width)
{
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    uint32_t i = (c * blockDim.x + threadIdx.x) * 8;
    v[c] = i < width ? *(const bf16x8 *)(x + i) : bf16x8();
  }
}

// Subtracts the mean of a row in registers; elements past its end stay 0. partial: one float for each warp.
template <int CHUNKS>
__device__ __forceinline__ void subtract_mean(float (&v)[CHUNKS][8], uint32_t width, float *partial)
{
  float sum = 0, total = 0;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
    for (int k = 0; k < 8; k++)
      sum += v[c][k];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0)
    partial[threadIdx.x / 32] = sum;
  __syncthreads();
  for (uint32_t p = 0; p < blockDim.x / 32; p++)
    total += partial[p];
  float mean = total / (float)width;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
    for (int k = 0; k < 8; k++)
      v[c][k] = (c * blockDim.x + threadIdx.x) * 8 < width ? v[c][k] - mean : 0;
}

// With few rows the time is one round trip to memory, so weights are requested before the input is there.
// With many rows a CTA computes one row after another and requests the next row before it sums the current
// one. FULL: with all options of td_rmsnorm_params. Without FULL they cost nothing.
template <int CHUNKS, bool FULL>
__global__ void __launch_bounds__(NORM_THREADS_MAX)
    rmsnorm_kernel(const bf16 *x, const float *weight, bf16 *out, uint32_t n, uint32_t width, float eps,
                   uint32_t stride, bool centred, bool add)
{
  __shared__ float partial[2][NORM_THREADS_MAX / 32], partial_mean[2][NORM_THREADS_MAX / 32];
  if (!FULL)
    stride = width;
  float w[CHUNKS][8];
  bf16x8 next[CHUNKS];
  pdl_launch_dependents();
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    uint32_t i = (c * blockDim.x + threadIdx.x) * 8;
    for (int k = 0; k < 8 && i < width; k += 4)
      *(float4 *)&w[c][k] = *(const float4 *)(weight + i + k);
  }
  pdl_wait();
  load_row<CHUNKS>(next, x + (size_t)blockIdx.x * stride, width);
  for (uint32_t row = blockIdx.x, phase = 0; row < n; row += gridDim.x, phase ^= 1) {
    float v[CHUNKS][8], sum = 0, total = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
      unpack(next[c], v[c]);
    if (row + gridDim.x < n)
      load_row<CHUNKS>(next, x + (size_t)(row + gridDim.x) * stride, width);
    if (FULL && centred)
      subtract_mean<CHUNKS>(v, width, partial_mean[phase]);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
      for (int k = 0; k < 8; k++)
        sum += v[c][k] * v[c][k];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
      partial[phase][threadIdx.x / 32] = sum;
    __syncthreads(); // no thread writes these sums again before all have passed the next barrier
    for (uint32_t p = 0; p < blockDim.x / 32; p++)
      total += partial[phase][p];
    float scale = rsqrtf(total / (float)width + eps);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      uint32_t i = (c * blockDim.x + threadIdx.x) * 8;
      for (int k = 0; k < 8; k++)
        v[c][k] *= scale * w[c][k];
      if (i >= width)
        continue;
      bf16x8 *to = (bf16x8 *)(out + (size_t)row * stride + i);
      if (FULL && add) {
        float residual[8];
        unpack(*to, residual);
        for (int k = 0; k < 8; k++)
          v[c][k] += residual[k];
      }
      *to = pack(v[c]);
    }
  }
}

void td_cuda_rmsnorm(cuda_backend *b, const td_rmsnorm_params *params, uint32_t n_rows)
{
  const params_with_rows<td_rmsnorm_params> with_rows = {*params, n_rows}, *p = &with_rows;
  TD_BUG_ON(p->width > NORM_THREADS_MAX * NORM_CHUNKS_MAX * 8);
  unsigned threads = std::min((unsigned)NORM_THREADS_MAX, (p->width / 8 + 31) / 32 * 32);
  uint32_t most = std::max(1u, NORM_SM_THREADS / threads) * (uint32_t)b->device.n_sms;
  bool full = p->stride > 0 || p->centred || p->add, two = p->width > NORM_THREADS_MAX * 8;
  auto kernel = full  ? (two ? rmsnorm_kernel<2, true> : rmsnorm_kernel<1, true>)
                : two ? rmsnorm_kernel<2, false>
                      : rmsnorm_kernel<1, false>;
  queue_kernel(&b->device, kernel, dim3(std::min(p->n, most)), threads, 0, at<bf16>(p->x),
               at<float>(p->weight), at<bf16>(p->out), p->n, p->width, p->eps,
               p->stride ? p->stride : p->width, p->centred, p->add);
}

enum { SWIGLU_THREADS = 256 };

__global__ void __launch_bounds__(SWIGLU_THREADS)
    swiglu_kernel(const bf16 *gate_up, bf16 *out, uint32_t width)
{
  uint32_t j = (blockIdx.y * SWIGLU_THREADS + threadIdx.x) * 8;
  pdl_launch_dependents();
  pdl_wait();
  if (j >= width)
    return;
  const bf16 *gate = gate_up + (size_t)blockIdx.x * 2 * width + j;
  bf16x8 gs = *(const bf16x8 *)gate, us = *(const bf16x8 *)(gate + width);
  float g[8], u[8];
  unpack(gs, g);
  unpack(us, u);
#pragma unroll
  for (int k = 0; k < 8; k++)
    g[k] = __fdividef(g[k], 1.0f + __expf(-g[k])) * u[k];
  *(bf16x8 *)(out + (size_t)blockIdx.x * width + j) = pack(g);
}

void td_cuda_swiglu(cuda_backend *b, const td_swiglu_params *params, uint32_t n_rows)
{
  const params_with_rows<td_swiglu_params> with_rows = {*params, n_rows}, *p = &with_rows;
  dim3 grid(p->n, (p->width / 8 + SWIGLU_THREADS - 1) / SWIGLU_THREADS);
  queue_kernel(&b->device, swiglu_kernel, grid, SWIGLU_THREADS, 0, at<bf16>(p->gate_up), at<bf16>(p->out),
               p->width);
}

__global__ void gather_kernel(const bf16 *x, device_batch batch, bf16 *out, uint32_t width)
{
  pdl_launch_dependents();
  pdl_wait();
  if (blockIdx.x >= *batch.n_logits)
    return;
  const bf16x8 *src = (const bf16x8 *)(x + (size_t)batch.logits[blockIdx.x].token * width);
  bf16x8 *dst = (bf16x8 *)(out + (size_t)blockIdx.x * width);
  for (uint32_t i = threadIdx.x; i < width / 8; i += blockDim.x)
    dst[i] = src[i];
}

void td_cuda_gather(cuda_backend *b, const td_gather_params *p, uint32_t n_rows)
{
  queue_kernel(&b->device, gather_kernel, dim3(b->frame.plan->n_logits), 128, 0, at<bf16>(p->x),
               b->frame.batch, at<bf16>(p->out), p->width);
}
