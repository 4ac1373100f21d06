// How a decode ends: the sums of a block's warps, or of one warp alone, go to the output or, of a split row, to a partial; they are added
// up the same way each time.
#pragma once

#include "kernels/cuda/attention_partials.cuh"
#include "kernels/cuda/attention_words.cuh"
#include "kernels/cuda/attention_tile.cuh"

// Of one query head over some keys: the softmax's maximum and sum, and of the output elements HD / 32 of each lane, neighbours.
template <int HD> struct row_sum {
  float m, l, o[HD / 32];
};

template <int HD> __device__ __forceinline__ void clear(row_sum<HD> &r)
{
  r = {-INFINITY, 0, {}};
}

// The lane's elements of a row of 32 * N floats in shared memory, 16-byte aligned.
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

template <int HD> __device__ __forceinline__ void add_term(row_sum<HD> &sum, const row_sum<HD> &term)
{
  float f, w;
  fold_factors(&sum.m, term.m, &f, &w);
  sum.l = fold(sum.l, f, term.l, w);
#pragma unroll
  for (int k = 0; k < HD / 32; k++)
    sum.o[k] = fold(sum.o[k], f, term.o[k], w);
}

// The lane's elements of a partial, in units.
template <int N> __device__ __forceinline__ void load_halves(__half (&v)[N], const unsigned char *partial)
{
  const unsigned char *src = partial + threadIdx.x % 32 * N * 2;
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *(uint2 *)&v[i] = __ldcg((const uint2 *)(src + 2 * i));
  } else if constexpr (N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2)
      *(uint32_t *)&v[i] = __ldcg((const uint32_t *)(src + 2 * i));
  } else {
#pragma unroll
    for (int i = 0; i < N; i++)
      *(unsigned short *)&v[i] = __ldcg((const unsigned short *)(src + 2 * i));
  }
}

template <int HD> __device__ __forceinline__ void add_partial(row_sum<HD> &sum, const partial_end &end, const __half (&o)[HD / 32])
{
  float f, w;
  fold_factors(&sum.m, end.m, &f, &w);
  sum.l = fold(sum.l, f, end.l, w);
  w = __fmul_rn(w, end.unit);
#pragma unroll
  for (int k = 0; k < HD / 32; k++)
    sum.o[k] = fold(sum.o[k], f, __half2float(o[k]), w);
}

template <int HD> __device__ __forceinline__ void store_output(bf16 *dst, const row_sum<HD> &r)
{
  constexpr int N = HD / 32;
  dst += threadIdx.x % 32 * N;
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

// What comes before the keys of a row's items: nothing.
struct nothing_before {
  template <int HD, int N> __device__ __forceinline__ void add(row_sum<HD> (&)[N], uint32_t, uint32_t) const {}
};

// A row's partials of its shared spans for one kv head, in the order of keys: they come before what its items have.
struct shared_before {
  unsigned char *partials; // [slots][group] of TD_ATTENTION_PARTIAL_BYTES
  const partial_run *runs; // of each span; in shared memory
  uint32_t n_runs, group;

  // To the sums of query heads p0 .. p0 + N - 1 of the group, of which n_heads are there. Some partials are fetched at once, but added
  // one by one.
  template <int HD, int N> __device__ __forceinline__ void add(row_sum<HD> (&own)[N], uint32_t p0, uint32_t n_heads) const
  {
    constexpr uint32_t AT_ONCE = N == 1 ? 4 : 2;
    if (n_runs == 0)
      return;
    row_sum<HD> sum[N];
    uint32_t span = 0, next = 0;
#pragma unroll
    for (int g = 0; g < N; g++)
      clear(sum[g]);
    while (span < n_runs) {
      partial_end end[AT_ONCE][N];
      alignas(8) __half o[AT_ONCE][N][HD / 32];
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++) {
        bool there = span < n_runs; // what is not has no weight
        const partial_run run = runs[there ? span : 0];
        size_t first = (size_t)(run.first + (there ? next : 0) * run.step) * group + p0;
#pragma unroll
        for (int g = 0; g < N; g++) {
          const unsigned char *src = partial_at<HD>(partials, first + min((uint32_t)g, n_heads - 1));
          end[i][g] = end_of<HD>(src);
          end[i][g].m = there ? end[i][g].m : -INFINITY;
          end[i][g].l = there ? end[i][g].l : 0;
          load_halves<HD / 32>(o[i][g], src);
        }
        if (++next >= run.n) {
          next = 0;
          span++;
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
        for (int g = 0; g < N; g++)
          add_partial<HD>(sum[g], end[i][g], o[i][g]);
    }
#pragma unroll
    for (int g = 0; g < N; g++) {
      add_term<HD>(sum[g], own[g]);
      own[g] = sum[g];
    }
  }
};

// A warp's rows to shared memory: [16][HD + 4] floats.
template <int HD> __device__ __forceinline__ void lay_out(const warp_state<HD> &st, float *smem, uint32_t n_rows)
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

// Packed row p of what all warps have laid out, in their order.
template <int HD> __device__ __forceinline__ row_sum<HD> sum_warps(const float *smem, uint32_t p)
{
  row_sum<HD> sum;
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

// ---- rows in shares ----
//
// Shares are added up in groups of SHARES_AT_ONCE neighbours, groups likewise, until one sum is left: the last share of each waits for the
// words of those before it (attention_words.cuh). Their blocks began before its own, so they end whatever it waits for. A sum lies in the
// place of the last share that it has, which the share itself does not need.
enum { SHARES_AT_ONCE = 8 };

template <int HD> __device__ __forceinline__ void hand_over(float *dst, const row_sum<HD> &r)
{
  constexpr int N = HD / 32;
  uint32_t lane = threadIdx.x % 32;
  put_words<N>(dst + lane * N, r.o);
  if (lane == 0)
    put_words<2>(dst + HD, {r.m, r.l});
}

// The sum of n < SHARES_AT_ONCE shares, `stride` floats apart, in their order; waits for them. What is not there is asked for again, all
// of it together.
template <int HD> __device__ __forceinline__ row_sum<HD> take_shares(float *part, size_t stride, uint32_t n)
{
  constexpr uint32_t N = HD / 32, MOST = SHARES_AT_ONCE - 1;
  uint32_t lane = threadIdx.x % 32;
  float ml[2], o[MOST][N], *my_ml = part + min(lane, n - 1) * stride + HD;
  for (bool asked = false, all = false; !all; asked = true) {
    all = true;
    if (!asked || __any_sync(0xffffffffu, is_absent(ml))) {
      ask_words<2>(ml, my_ml);
      all = false;
    }
#pragma unroll
    for (uint32_t i = 0; i < MOST; i++)
      if (i < n && (!asked || __any_sync(0xffffffffu, is_absent(o[i])))) {
        ask_words<N>(o[i], part + i * stride + lane * N);
        all = false;
      }
  }
  row_sum<HD> sum;
  clear(sum);
  sum.m = warp_max(ml[0]);
  float f = lane < n ? exp2_fast(ml[0] - (sum.m == -INFINITY ? 0 : sum.m)) : 0;
  sum.l = warp_sum(lane < n ? ml[1] * f : 0);
#pragma unroll
  for (uint32_t i = 0; i < MOST; i++)
    if (i < n) {
      float weight = __shfl_sync(0xffffffffu, f, i);
#pragma unroll
      for (uint32_t k = 0; k < N; k++)
        sum.o[k] += o[i][k] * weight;
      forget_words<N>(part + i * stride + lane * N);
    }
  if (lane < n)
    forget_words<2>(my_ml);
  return sum;
}

// A share's sum to the one that waits for it, or, of the row's last share, what all of them come to: then true. `places`: of the row's
// shares, `stride` floats apart.
template <int HD>
__device__ __forceinline__ bool add_up_shares(row_sum<HD> *sum, float *places, size_t stride, uint32_t share, uint32_t n_shares)
{
  for (uint32_t n = n_shares; n > 1; n = (n + SHARES_AT_ONCE - 1) / SHARES_AT_ONCE, share /= SHARES_AT_ONCE) {
    uint32_t before = share % SHARES_AT_ONCE;
    if (before + 1 < SHARES_AT_ONCE && share + 1 < n) {
      hand_over<HD>(places + share * stride, *sum);
      return false;
    }
    if (before > 0) {
      row_sum<HD> all = take_shares<HD>(places + (share - before) * stride, stride, before);
      add_term<HD>(all, *sum);
      *sum = all;
    }
    places += (SHARES_AT_ONCE - 1) * stride;
    stride *= SHARES_AT_ONCE;
  }
  return true;
}

// Of an item whose keys a block's warps have shared. `before`: what else the row has, and how it is added.
// smem: WARPS x 16 x (HD + 4) floats that no one needs any more.
template <int HD, class BEFORE = nothing_before>
__device__ __forceinline__ void finish_block(const warp_state<HD> &st, const attention_args &a, const td_attention_item &it,
                                             uint32_t kv_head, float *smem, const BEFORE &before = {})
{
  uint32_t warp = threadIdx.x / 32, n_rows = it.n_tokens * a.group;
  size_t stride = (size_t)a.n_kv_heads * TD_DECODE_ROWS * (HD + 4);
  float *places = a.partials + it.first_partial * stride + kv_head * TD_DECODE_ROWS * (HD + 4);
  lay_out<HD>(st, smem + warp * 16 * (HD + 4), n_rows);
  __syncthreads();
  for (uint32_t p = warp; p < n_rows; p += WARPS) {
    row_sum<HD> sum[1] = {sum_warps<HD>(smem, p)};
    if (!add_up_shares<HD>(sum, places + p * (HD + 4), stride, it.partial - it.first_partial, it.n_partials))
      continue;
    before.add(sum, p, 1);
    store_output<HD>(output_of(a, it, kv_head, p, HD), sum[0]);
  }
}

// Of an item that one warp did alone. smem: 16 x (HD + 4) floats of its own.
template <int HD, class BEFORE = nothing_before>
__device__ __forceinline__ void finish_warp(const warp_state<HD> &st, const attention_args &a, const td_attention_item &it,
                                            uint32_t kv_head, float *smem, const BEFORE &before = {})
{
  constexpr uint32_t AT_ONCE = 4;
  uint32_t n_rows = it.n_tokens * a.group;
  lay_out<HD>(st, smem, n_rows);
  __syncwarp();
  for (uint32_t p0 = 0; p0 < n_rows; p0 += AT_ONCE) {
    uint32_t n = min(AT_ONCE, n_rows - p0);
    row_sum<HD> sum[AT_ONCE];
#pragma unroll
    for (uint32_t g = 0; g < AT_ONCE; g++) {
      const float *r = smem + (p0 + min(g, n - 1)) * (HD + 4);
      sum[g].m = r[HD];
      sum[g].l = r[HD + 1];
      load_elements<HD / 32>(sum[g].o, r);
    }
    before.add(sum, p0, n);
#pragma unroll
    for (uint32_t g = 0; g < AT_ONCE; g++)
      if (g < n)
        store_output<HD>(output_of(a, it, kv_head, p0 + g, HD), sum[g]);
  }
}
