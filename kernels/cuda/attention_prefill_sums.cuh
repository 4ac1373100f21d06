// KV splits of prefill tiles, for steps in which few tiles have many keys. Each CTA takes some of a tile's
// keys. All of them then reduce the partials, always in the same order.
//
// A CTA first attends to all of its items and publishes their partials. Only then does it wait. So a CTA that
// waits has no keys left to read, and it waits only for work that other CTAs do before they wait
// (docs/attention-progress.md). For each split that it computed, it then reduces some of the tile's rows.
// This divides the reduction over all CTAs.
#pragma once

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/attention_flags.cuh"

// A partial is a warpgroup's 64 rows of one split: rows of HD floats, then each row's maximum and sum.
constexpr size_t prefill_partial_floats(uint32_t head_dim) { return 64 * ((size_t)head_dim + 2); }

// n: partials of the step (one for each KV split, kv head, CTA of a cluster and warpgroup). launch: a number
// that no other launch of the step has.
struct prefill_splits {
  float *partials;
  uint64_t *done; // [partials] flags: the step and launch that wrote the partial last
  uint32_t n, launch;
};

#ifdef TD_HAS_WGMMA
template <int HD> struct floats_of {
  static constexpr size_t N = prefill_partial_floats(HD);
};

// The partials of a tile's splits are `stride` apart.
struct prefill_partial {
  const prefill_splits &all;
  uint32_t first, stride, split, n_splits, step;

  __device__ __forceinline__ uint64_t flag_value() const { return (uint64_t)step << 32 | all.launch; }
  template <int HD> __device__ __forceinline__ float *at(uint32_t i) const
  {
    return all.partials + (first + i * stride) * floats_of<HD>::N;
  }

  // Called by the warpgroup that has the sums. barrier: a named barrier of this warpgroup alone.
  template <int HD>
  __device__ __forceinline__ void publish_split(const consumer<HD> &c, uint32_t barrier) const
  {
    float *rows = at<HD>(split), *ends = rows + 64 * HD;
    uint32_t r0 = threadIdx.x % WARPGROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t r = r0 + 8 * h;
      float sum = c.l[h];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      float *dst = rows + r * HD + 2 * (threadIdx.x % 4);
#pragma unroll
      for (int j = 0; j < HD / 8; j++)
        *(float2 *)(dst + j * 8) = make_float2(c.o[4 * j + 2 * h], c.o[4 * j + 2 * h + 1]);
      if (threadIdx.x % 4 == 0)
        *(float2 *)(ends + 2 * r) = make_float2(c.m[h], sum);
    }
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"((uint32_t)WARPGROUP_THREADS) : "memory");
    if (threadIdx.x % WARPGROUP_THREADS == 0)
      set_flag(all.done + first + split * stride, flag_value());
  }

  // Reduces this split's part of the rows. output(row): where a row is written, or null.
  template <int HD, class OUTPUT>
  __device__ __forceinline__ void reduce_partials(float scale_log2, const OUTPUT &output) const
  {
    constexpr uint32_t ROWS_AT_ONCE = HD <= 128 ? 2 : 1, WARPGROUP_WARPS = WARPGROUP_THREADS / 32;
    uint32_t lane = threadIdx.x % 32, per_split = (64 + n_splits - 1) / n_splits;
    uint32_t end = min(64u, (split + 1) * per_split);
    if (lane < n_splits)
      wait_flag(all.done + first + lane * stride, flag_value());
    __syncwarp();
    for (uint32_t r = split * per_split + threadIdx.x % WARPGROUP_THREADS / 32; r < end;
         r += ROWS_AT_ONCE * WARPGROUP_WARPS) {
      row_of_splits<HD> rows[ROWS_AT_ONCE];
#pragma unroll
      for (uint32_t k = 0; k < ROWS_AT_ONCE; k++)
        if (r + k * WARPGROUP_WARPS < end)
          rows[k].start_loads(*this, r + k * WARPGROUP_WARPS);
#pragma unroll
      for (uint32_t k = 0; k < ROWS_AT_ONCE; k++)
        if (r + k * WARPGROUP_WARPS < end) {
          rows[k].add(*this, r + k * WARPGROUP_WARPS, scale_log2);
          rows[k].store(output(r + k * WARPGROUP_WARPS));
        }
    }
  }

private:
  // One query row of all splits, reduced by a warp.
  template <int HD> struct row_of_splits {
    static constexpr uint32_t PAIRS = HD / 64 + (HD % 64 > 0),
                              AT_ONCE = 8; // each lane has pairs of neighbouring elements
    float2 v[AT_ONCE][PAIRS], end, o[PAIRS];
    float sum;

    __device__ __forceinline__ void load_values(const prefill_partial &p, uint32_t r, uint32_t first)
    {
      uint32_t lane = threadIdx.x % 32;
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
        for (uint32_t k = 0; k < PAIRS; k++)
          if (first + i < p.n_splits && lane * 2 + k * 64 < HD)
            v[i][k] = __ldcg((const float2 *)(p.at<HD>(first + i) + r * HD + k * 64) + lane);
    }

    // Starts the loads; does not wait for them.
    __device__ __forceinline__ void start_loads(const prefill_partial &p, uint32_t r)
    {
      end = __ldcg((const float2 *)(p.at<HD>(min(threadIdx.x % 32, p.n_splits - 1)) + 64 * HD + 2 * r));
      load_values(p, r, 0);
    }

    __device__ __forceinline__ void add(const prefill_partial &p, uint32_t r, float scale_log2)
    {
      uint32_t lane = threadIdx.x % 32;
      float top = warp_max(end.x), safe = top == -INFINITY ? 0 : top * scale_log2;
      float mine = lane < p.n_splits ? exp2_fast(end.x * scale_log2 - safe) : 0;
      sum = warp_sum(lane < p.n_splits ? end.y * mine : 0);
#pragma unroll
      for (uint32_t k = 0; k < PAIRS; k++)
        o[k] = {0, 0};
      for (uint32_t first = 0; first < p.n_splits; first += AT_ONCE) {
        if (first > 0)
          load_values(p, r, first);
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
          float w = __shfl_sync(0xffffffffu, mine, (first + i) % 32);
#pragma unroll
          for (uint32_t k = 0; k < PAIRS; k++)
            if (first + i < p.n_splits && lane * 2 + k * 64 < HD) {
              o[k].x = __fmaf_rn(v[i][k].x, w, o[k].x);
              o[k].y = __fmaf_rn(v[i][k].y, w, o[k].y);
            }
        }
      }
    }

    __device__ __forceinline__ void store(bf16 *dst) const
    {
      float inv = divided(1, sum);
#pragma unroll
      for (uint32_t k = 0; k < PAIRS; k++)
        if (dst && threadIdx.x % 32 * 2 + k * 64 < HD)
          *(uint32_t *)(dst + k * 64 + threadIdx.x % 32 * 2) = pack2(o[k].x * inv, o[k].y * inv);
    }
  };
};
#endif
