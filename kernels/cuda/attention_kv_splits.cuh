// Decodes in KV splits (FlashDecoding): each CTA attends to some keys of a sequence and publishes its
// partial. Some of these CTAs then reduce the partials, always in the same order.
//
// Up to ONE_CTA_SPLITS_MAX splits are reduced by the CTA of the last split, one warp for each query head.
// More partials would be too much for one CTA to fetch, and a reduction tree would take a round trip to the
// L2 cache for each level. So with more splits, the warps of the last splits' CTAs reduce slices: SLICE
// elements of one query head each. These CTAs wait for values of others (attention_flags.cuh);
// docs/attention-progress.md shows why that ends.
#pragma once

#include "kernels/cuda/attention_partials.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/attention_flags.cuh"

enum {
  ONE_CTA_SPLITS_MAX = 8,
  SLICE = SPLIT_SLICE,
  SLICE_LANE_ELEMENTS = 4,
  SLICE_LANES = SLICE / SLICE_LANE_ELEMENTS,
  SLICE_SPLITS = 32 / SLICE_LANES, // splits that a warp reads at once
};

// A query head's partial over some keys: the softmax's maximum and sum, and N neighbouring elements of the
// output.
template <int N> struct row_sum {
  float m, l, o[N];
};

template <int N> __device__ __forceinline__ void clear(row_sum<N> &r) { r = {-INFINITY, 0, {}}; }

template <int N> __device__ __forceinline__ void add_term(row_sum<N> &sum, const row_sum<N> &term)
{
  float f, w;
  fold_factors(&sum.m, term.m, &f, &w);
  sum.l = fold(sum.l, f, term.l, w);
#pragma unroll
  for (int k = 0; k < N; k++)
    sum.o[k] = fold(sum.o[k], f, term.o[k], w);
}

#ifdef __CUDACC__
// Layout of a query head's published partial: slices. Each slice is followed by its own copy of the softmax's
// maximum and sum, because a reader resets what it reads and each slice has another reader.
template <int HD> struct split_row {
  static constexpr uint32_t SLICES = HD / SLICE, SLICE_FLOATS = SPLIT_SLICE_FLOATS,
                            FLOATS = kv_split_floats(HD);
  static __device__ __forceinline__ uint32_t at(uint32_t element)
  {
    return element / SLICE * SLICE_FLOATS + element % SLICE;
  }
};

// The published partials of a sequence: [n splits][kv heads][TD_DECODE_ROWS] of split_row.
struct kv_split {
  float *all;
  size_t stride; // floats from split to split
  uint32_t split, n;
};

template <int HD> __device__ __forceinline__ size_t split_stride(const attention_args &a)
{
  return (size_t)a.n_kv_heads * TD_DECODE_ROWS * split_row<HD>::FLOATS;
}

// n_ends: number of slices that get the maximum and sum, one for each reader.
template <int HD>
__device__ __forceinline__ void publish_split(float *dst, const row_sum<HD / 32> &r, uint32_t n_ends)
{
  constexpr int N = HD / 32, AT_ONCE = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < N; i += AT_ONCE)
    publish_floats<AT_ONCE>(dst + split_row<HD>::at(lane * N + i), *(const float(*)[AT_ONCE]) & r.o[i]);
  if (lane < n_ends)
    publish_floats<2>(dst + lane * split_row<HD>::SLICE_FLOATS + SLICE, {r.m, r.l});
}

// ---- reduction by one CTA ----

template <int HD, bool RESET> __device__ __forceinline__ void whole_row(float (&v)[HD / 32], float *row)
{
  constexpr int N = HD / 32, AT_ONCE = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int i = 0; i < N; i += AT_ONCE) {
    float *at = row + split_row<HD>::at(threadIdx.x % 32 * N + i);
    if constexpr (RESET)
      reset_floats<AT_ONCE>(at);
    else
      poll_floats<AT_ONCE>(*(float(*)[AT_ONCE]) & v[i], at);
  }
}

// Waits for n < ONE_CTA_SPLITS_MAX splits and returns their sum, added in their order. Each round of polling
// loads all values that are still empty.
template <int HD>
__device__ __forceinline__ row_sum<HD / 32> reduce_splits(float *partials, size_t stride, uint32_t n)
{
  constexpr uint32_t N = HD / 32, MOST = ONE_CTA_SPLITS_MAX - 1;
  uint32_t lane = threadIdx.x % 32;
  float ml[2], o[MOST][N], *my_ml = partials + min(lane, n - 1) * stride + SLICE;
  for (bool polled = false, all = false; !all; polled = true) {
    all = true;
    if (!polled || __any_sync(0xffffffffu, is_empty(ml))) {
      poll_floats<2>(ml, my_ml);
      all = false;
    }
#pragma unroll
    for (uint32_t i = 0; i < MOST; i++)
      if (i < n && (!polled || __any_sync(0xffffffffu, is_empty(o[i])))) {
        whole_row<HD, false>(o[i], partials + i * stride);
        all = false;
      }
  }
  row_sum<N> sum;
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
      whole_row<HD, true>(o[i], partials + i * stride);
    }
  if (lane < n)
    reset_floats<2>(my_ml);
  return sum;
}

// Handles query head p of a split. Returns false after publishing the partial for others to reduce. Returns
// true for the last of up to ONE_CTA_SPLITS_MAX splits; *sum is then the sum of all splits.
template <int HD>
__device__ __forceinline__ bool reduce_all_splits(row_sum<HD / 32> *sum, const kv_split &mine, uint32_t p)
{
  float *first = mine.all + p * split_row<HD>::FLOATS;
  bool sliced = mine.n > ONE_CTA_SPLITS_MAX;
  if (sliced || mine.split + 1 < mine.n) {
    publish_split<HD>(first + mine.split * mine.stride, *sum, sliced ? split_row<HD>::SLICES : 1);
    return false;
  }
  row_sum<HD / 32> all = reduce_splits<HD>(first, mine.stride, mine.n - 1);
  add_term(all, *sum);
  *sum = all;
  return true;
}

// ---- reduction by slices ----

// Waits for all n splits of a slice and sums them. Each lane adds every SLICE_SPLITS-th split; then lanes are
// added in pairs, so all lanes with the same elements get the same sums. Only the first splits are polled
// until they are there: polling all of them would take a third of the L2 bandwidth from the CTAs that still
// read keys.
__device__ __forceinline__ void reduce_slice(row_sum<SLICE_LANE_ELEMENTS> *out, float *slice, size_t stride,
                                             uint32_t n)
{
  constexpr uint32_t AT_ONCE = 8;
  uint32_t lane = threadIdx.x % 32, element = lane % SLICE_LANES * SLICE_LANE_ELEMENTS,
           first = lane / SLICE_LANES;
  clear(*out);
  for (uint32_t n0 = 0; n0 < n; n0 += AT_ONCE * SLICE_SPLITS) {
    float ml[AT_ONCE][2], o[AT_ONCE][SLICE_LANE_ELEMENTS], *at[AT_ONCE];
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++)
      at[i] = slice + min(n0 + i * SLICE_SPLITS + first, n - 1) * stride;
    auto poll = [&](uint32_t i) {
      poll_floats<SLICE_LANE_ELEMENTS>(o[i], at[i] + element);
      poll_floats<2>(ml[i], at[i] + SLICE);
    };
    auto is_missing = [&](uint32_t i) { return is_empty(o[i]) || is_empty(ml[i]); };
    do
      poll(0);
    while (__any_sync(0xffffffffu, is_missing(0)));
#pragma unroll
    for (uint32_t i = 1; i < AT_ONCE; i++)
      if (n0 + i * SLICE_SPLITS < n)
        poll(i);
    for (bool again = true; __any_sync(0xffffffffu, again);) {
      again = false;
#pragma unroll
      for (uint32_t i = 1; i < AT_ONCE; i++)
        if (n0 + i * SLICE_SPLITS < n && is_missing(i)) {
          poll(i);
          again = true;
        }
    }
    float top = out->m, safe;
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++)
      if (n0 + i * SLICE_SPLITS + first < n)
        top = fmaxf(top, ml[i][0]);
    safe = top == -INFINITY ? 0 : top;
    float f = exp2_fast(out->m - safe);
    out->m = top;
    out->l *= f;
#pragma unroll
    for (uint32_t k = 0; k < SLICE_LANE_ELEMENTS; k++)
      out->o[k] *= f;
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++)
      if (n0 + i * SLICE_SPLITS + first < n) {
        float w = exp2_fast(ml[i][0] - safe);
        out->l += ml[i][1] * w;
#pragma unroll
        for (uint32_t k = 0; k < SLICE_LANE_ELEMENTS; k++)
          out->o[k] += o[i][k] * w;
        reset_floats<SLICE_LANE_ELEMENTS>(at[i] + element); // all lanes have read it
        if (element == 0)
          reset_floats<2>(at[i] + SLICE);
      }
  }
#pragma unroll
  for (uint32_t d = SLICE_LANES; d < 32; d *= 2) {
    float m = __shfl_xor_sync(0xffffffffu, out->m, d), top = fmaxf(out->m, m),
          safe = top == -INFINITY ? 0 : top;
    float f = exp2_fast(out->m - safe), w = exp2_fast(m - safe),
          l = __shfl_xor_sync(0xffffffffu, out->l, d) * w;
    out->m = top;
    out->l = __fadd_rn(__fmul_rn(out->l, f), l);
#pragma unroll
    for (uint32_t k = 0; k < SLICE_LANE_ELEMENTS; k++)
      out->o[k] =
          __fadd_rn(__fmul_rn(out->o[k], f), __fmul_rn(__shfl_xor_sync(0xffffffffu, out->o[k], d), w));
  }
}

// Reduces this CTA's slices with all its warps and calls end(query head, the lane's first element, its sum)
// for each. resident: the most CTAs of a sequence that may reduce (docs/attention-progress.md).
template <int HD, class END>
__device__ __forceinline__ void reduce_slices(const kv_split &mine, uint32_t n_rows, uint32_t resident,
                                              const END &end)
{
  constexpr uint32_t SLICES = split_row<HD>::SLICES;
  uint32_t n_slices = n_rows * SLICES, reducers = min(min((n_slices + WARPS - 1) / WARPS, mine.n), resident),
           before = mine.n - reducers;
  if (mine.split < before)
    return;
  for (uint32_t i = (mine.split - before) * WARPS + threadIdx.x / 32; i < n_slices; i += reducers * WARPS) {
    row_sum<SLICE_LANE_ELEMENTS> sum[1];
    reduce_slice(&sum[0],
                 mine.all + i / SLICES * split_row<HD>::FLOATS + i % SLICES * split_row<HD>::SLICE_FLOATS,
                 mine.stride, mine.n);
    end(i / SLICES, i % SLICES * SLICE + threadIdx.x % SLICE_LANES * SLICE_LANE_ELEMENTS, sum);
  }
}
#endif
