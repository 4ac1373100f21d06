// The epilogue of a decode: the sums of a CTA's warps, or of a single warp, go to the output, or to a partial
// if the sequence has KV splits. The order of additions is always the same.
#pragma once

#include "kernels/cuda/attention_kv_splits.cuh"
#include "kernels/cuda/attention_tile.cuh"

// Loads this lane's N of 32 * N floats in shared memory, 16-byte aligned.
template <int N> __device__ __forceinline__ void load_elements(float (&v)[N], const float *row)
{
  constexpr int AT_ONCE = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
  const float *src = row + threadIdx.x % 32 * N;
#pragma unroll
  for (int i = 0; i < N; i += AT_ONCE) {
    if constexpr (AT_ONCE == 4) {
      float4 x = *(const float4 *)(src + i);
      v[i] = x.x, v[i + 1] = x.y, v[i + 2] = x.z, v[i + 3] = x.w;
    } else if constexpr (AT_ONCE == 2) {
      float2 x = *(const float2 *)(src + i);
      v[i] = x.x, v[i + 1] = x.y;
    } else {
      v[i] = src[i];
    }
  }
}

// dst: the lane's first element.
template <int N> __device__ __forceinline__ void store_output(bf16 *dst, const row_sum<N> &r)
{
  if constexpr (N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2)
      *(uint32_t *)(dst + i) = pack2(divided(r.o[i], r.l), divided(r.o[i + 1], r.l));
  } else {
#pragma unroll
    for (int i = 0; i < N; i++)
      dst[i] = __float2bfloat16(divided(r.o[i], r.l));
  }
}

// The PREFIX_REDUCTION of sequences without shared prefixes: adds nothing.
struct no_prefix_reduction {
  template <int HD, int N, int E>
  __device__ __forceinline__ void add(row_sum<E> (&)[N], uint32_t, uint32_t, uint32_t) const
  {
  }
};

// Writes a warp's query rows to shared memory as [16][HD + 4] floats.
template <int HD>
__device__ __forceinline__ void store_rows(const warp_state<HD> &st, float *smem, uint32_t n_rows)
{
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t p = lane / 4 + 8 * h;
    float *r = smem + p * (HD + 4);
    if (p >= n_rows)
      continue;
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
      *(float2 *)(r + d * 8 + 2 * (lane % 4)) = make_float2(st.o[d][2 * h], st.o[d][2 * h + 1]);
    if (lane % 4 == 0)
      *(float2 *)(r + HD) = make_float2(st.m[h], st.l[h]);
  }
}

// Adds query row p of all warps in warp order, from what store_rows wrote.
template <int HD> __device__ __forceinline__ row_sum<HD / 32> sum_warps(const float *smem, uint32_t p)
{
  row_sum<HD / 32> sum;
  clear(sum);
#pragma unroll
  for (int w = 0; w < WARPS; w++)
    sum.m = fmaxf(sum.m, smem[(w * 16 + p) * (HD + 4) + HD]);
  float safe = sum.m == -INFINITY ? 0 : sum.m;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    const float *r = smem + (w * 16 + p) * (HD + 4);
    float f = exp2_fast(r[HD] - safe), o[HD / 32];
    load_elements<HD / 32>(o, r);
    sum.l += r[HD + 1] * f;
#pragma unroll
    for (int k = 0; k < HD / 32; k++)
      sum.o[k] += o[k] * f;
  }
  return sum;
}

// The epilogue of an item whose keys were divided over a CTA's warps. `prefixes` adds the partials of shared
// prefixes. smem: WARPS x 16 x (HD + 4) floats that are no longer in use.
template <int HD, class PREFIX_REDUCTION = no_prefix_reduction>
__device__ __forceinline__ void reduce_cta(const warp_state<HD> &st, const attention_args &a,
                                           const td_attention_item &it, uint32_t kv_head, float *smem,
                                           const PREFIX_REDUCTION &prefixes = {})
{
  constexpr uint32_t N = HD / 32;
  uint32_t warp = threadIdx.x / 32, first = threadIdx.x % 32 * N, n_rows = it.n_tokens * a.gqa_group;
  const kv_split mine = {a.partials + it.first_partial * split_stride<HD>(a) +
                             kv_head * TD_DECODE_ROWS * split_row<HD>::FLOATS,
                         split_stride<HD>(a), it.partial - it.first_partial, it.n_partials};
  store_rows<HD>(st, smem + warp * 16 * (HD + 4), n_rows);
  __syncthreads();
  for (uint32_t p = warp; p < n_rows; p += WARPS) {
    row_sum<N> sum[1] = {sum_warps<HD>(smem, p)};
    if (it.n_partials > 1 && !reduce_all_splits<HD>(sum, mine, p))
      continue;
    prefixes.template add<HD>(sum, p, 1, first);
    store_output(output_of(a, it, kv_head, p, HD) + first, sum[0]);
  }
  if (it.n_partials > ONE_CTA_SPLITS_MAX)
    reduce_slices<HD>(mine, n_rows, a.resident,
                      [&](uint32_t p, uint32_t element, row_sum<SLICE_LANE_ELEMENTS>(&sum)[1]) {
                        prefixes.template add<HD>(sum, p, 1, element);
                        if (threadIdx.x % 32 < SLICE_LANES)
                          store_output(output_of(a, it, kv_head, p, HD) + element, sum[0]);
                      });
}

// The epilogue of an item that one warp did alone. smem: 16 x (HD + 4) floats of its own.
template <int HD, class PREFIX_REDUCTION = no_prefix_reduction>
__device__ __forceinline__ void reduce_warp(const warp_state<HD> &st, const attention_args &a,
                                            const td_attention_item &it, uint32_t kv_head, float *smem,
                                            const PREFIX_REDUCTION &prefixes = {})
{
  constexpr uint32_t AT_ONCE = 4, N = HD / 32;
  uint32_t first = threadIdx.x % 32 * N, n_rows = it.n_tokens * a.gqa_group;
  store_rows<HD>(st, smem, n_rows);
  __syncwarp();
  for (uint32_t p0 = 0; p0 < n_rows; p0 += AT_ONCE) {
    uint32_t n = min(AT_ONCE, n_rows - p0);
    row_sum<N> sum[AT_ONCE];
#pragma unroll
    for (uint32_t g = 0; g < AT_ONCE; g++) {
      const float *r = smem + (p0 + min(g, n - 1)) * (HD + 4);
      sum[g].m = r[HD];
      sum[g].l = r[HD + 1];
      load_elements<N>(sum[g].o, r);
    }
    prefixes.template add<HD>(sum, p0, n, first);
#pragma unroll
    for (uint32_t g = 0; g < AT_ONCE; g++)
      if (g < n)
        store_output(output_of(a, it, kv_head, p0 + g, HD) + first, sum[g]);
  }
}
