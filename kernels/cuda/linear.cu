// Linears: out[n, n_out] = x[n, n_in] * weight[n_out, n_in]^T + bias, or out += that.
//
// With few rows, reading the weights takes most of the time. On Hopper gemm_fused.cu and gemm_skinny.cu
// compute these. On other GPUs, or for shapes that those two cannot do, up to 8 rows go to the kernel in this
// file: 16 weight rows a CTA, n_in divided between the CTA's warps, weights loaded straight into tensor-core
// operands. This works because k may be summed in any order: a lane's 16-byte load holds 8 neighbouring k,
// and both operands use the same order. All other row counts go to cuBLASLt (gemm_cublaslt.cu).
#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"

#include <algorithm>

enum { FEW_ROWS_MAX = 8, FEW_WARPS = 16, FEW_UNROLL = 4, FEW_CTAS_PER_SM = 2 };

__device__ __forceinline__ uint4 load_streaming(const void *p)
{
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Loads FEW_UNROLL x 32 weight columns from k0 on, for this lane's two rows. Columns past n_in (a multiple of
// 32) are 0.
__device__ __forceinline__ void load_weights(uint4 a0[FEW_UNROLL], uint4 a1[FEW_UNROLL], const bf16 *w0,
                                             const bf16 *w1, uint32_t k0, uint32_t n_in)
{
#pragma unroll
  for (int u = 0; u < FEW_UNROLL; u++) {
    bool in = k0 + 32 * u < n_in;
    a0[u] = in ? load_streaming(w0 + k0 + 32 * u) : uint4{};
    a1[u] = in ? load_streaming(w1 + k0 + 32 * u) : uint4{};
  }
}

// Starts loading weights, which do not depend on earlier kernels, before it waits for its input. Otherwise
// short matrices would spend most of their time on the first loads.
template <typename OUT>
__global__ void __launch_bounds__(FEW_WARPS * 32, FEW_CTAS_PER_SM)
    few_rows_kernel(const bf16 *w, const bf16 *bias, const bf16 *x, OUT *out, bool add, uint32_t n,
                    uint32_t n_out, uint32_t n_in)
{
  __shared__ float partial[FEW_WARPS][16][FEW_ROWS_MAX + 1];
  const uint32_t step = 32 * FEW_UNROLL;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t j = blockIdx.x * 16 + g, k0 = warp * step; // this lane's weight rows are j and j + 8
  const bf16 *w0 = w + (size_t)min(j, n_out - 1) * n_in + t * 8;
  const bf16 *w1 = w + (size_t)min(j + 8, n_out - 1) * n_in + t * 8;
  const bf16 *xr = x + (size_t)min(g, n - 1) * n_in + t * 8; // rows past n repeat the last
  float acc[4] = {};
  uint4 a0[FEW_UNROLL], a1[FEW_UNROLL];
  pdl_launch_dependents();
  load_weights(a0, a1, w0, w1, k0, n_in);
  pdl_wait();
  while (k0 < n_in) {
#pragma unroll
    for (int u = 0; u < FEW_UNROLL; u++)
      if (k0 + 32 * u < n_in) {
        uint4 bv = *(const uint4 *)(xr + k0 + 32 * u);
        const uint32_t first[4] = {a0[u].x, a1[u].x, a0[u].y, a1[u].y};
        const uint32_t second[4] = {a0[u].z, a1[u].z, a0[u].w, a1[u].w};
        mma_16816(acc, first, bv.x, bv.y);
        mma_16816(acc, second, bv.z, bv.w);
      }
    k0 += FEW_WARPS * step;
    if (k0 < n_in)
      load_weights(a0, a1, w0, w1, k0, n_in);
  }
  partial[warp][g][2 * t] = acc[0];
  partial[warp][g][2 * t + 1] = acc[1];
  partial[warp][g + 8][2 * t] = acc[2];
  partial[warp][g + 8][2 * t + 1] = acc[3];
  __syncthreads();
  for (uint32_t e = threadIdx.x; e < 16 * n; e += blockDim.x) {
    uint32_t r = e % 16, m = e / 16, col = blockIdx.x * 16 + r;
    if (col >= n_out)
      continue;
    float sum = bias ? __bfloat162float(bias[col]) : 0.0f;
    for (int v = 0; v < FEW_WARPS; v++)
      sum += partial[v][r][m];
    OUT *dst = out + (size_t)m * n_out + col;
    *dst = (OUT)(add ? (float)*dst + sum : sum);
  }
}

template <typename OUT> static void few_rows(cuda_backend *b, const params_with_rows<td_linear_params> *p)
{
  const td_cuda_weight *w = cuda_weight(p->weight);
  queue_kernel(&b->device, few_rows_kernel<OUT>, dim3((w->n_out + 15) / 16), FEW_WARPS * 32, 0, w->data,
               w->bias, at<bf16>(p->x), at<OUT>(p->out), p->add, p->n, w->n_out, w->n_in);
}

static uint32_t few_rows_max(const td_cuda_weight *w)
{
  return is_of_type(w, TD_BF16, TD_BF16) && w->n_in % 32 == 0 ? FEW_ROWS_MAX : 0;
}

uint32_t td_cuda_lt_rows_min(const td_cuda_weight *w)
{
  return std::max(td_skinny_rows_max(w), few_rows_max(w)) + 1;
}

void td_cuda_linear(cuda_backend *b, const td_linear_params *params, uint32_t n_rows)
{
  const params_with_rows<td_linear_params> with_rows = {*params, n_rows}, *p = &with_rows;
  if (!b->config.batch_invariant && (td_fused_linear(b, p) || td_skinny_linear(b, p)))
    return;
  TD_BUG_ON(p->out_f32 &&
            p->weight->has_bias); // only the output head is f32, and no supported model has a bias there
  if (b->config.batch_invariant || p->n > few_rows_max(cuda_weight(p->weight)))
    td_lt_linear(b, p);
  else if (p->out_f32)
    few_rows<float>(b, p);
  else
    few_rows<bf16>(b, p);
}
