// How a warp streams its slices of a row's pages through a ring of its own.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/mbarrier.cuh"

enum { SLICE_TOKENS = 16 };

// RING: slices of a warp's ring.
template <int HD, int RING> struct slice_shape {
  static constexpr int SLICE_BYTES = SLICE_TOKENS * HD * 2; // of K, or of V
  static constexpr int DEPTH = RING;
  static constexpr int WARP_BYTES = DEPTH * 2 * SLICE_BYTES;
};

#ifdef TD_HAS_MBARRIER
// What a warp reads: slices warp, warp + WARPS, ... of the item's keys.
template <int HD, int RING> struct slice_stream {
  using S = slice_shape<HD, RING>;
  const bf16 *kv; // of the kv head in page 0
  const int32_t *pages;
  size_t page_stride;
  uint32_t page_shift, token0, n; // log2 of a page's tokens; first slice's token; slices
  uint32_t smem, bars;
  uint64_t policy;
  int32_t page_id; // lane i: the page of slice i of the current 32

  // The calling warp's share of an item. Sliding windows leave out what no query sees.
  __device__ __forceinline__ void open(const attention_args &a, const device_batch &batch, const td_attention_item &it,
                                       const td_plan_row &row, uint32_t kv_head)
  {
    uint32_t warp = threadIdx.x / 32, kv_begin = it.kv_begin, seen = row.kv_len - row.q_len + it.token_begin + 1;
    if (a.window > 0 && seen > a.window)
      kv_begin = max(kv_begin, (seen - a.window) / SLICE_TOKENS * SLICE_TOKENS);
    size_t half = (size_t)batch.page_tokens * HD;
    kv = a.kv + kv_head * 2 * half;
    pages = batch.page_table + row.page_table_offset;
    page_stride = half * 2 * a.n_kv_heads;
    page_shift = log2_of(batch.page_tokens);
    token0 = kv_begin + warp * SLICE_TOKENS;
    n = token0 < it.kv_end ? (it.kv_end - token0 + WARPS * SLICE_TOKENS - 1) / (WARPS * SLICE_TOKENS) : 0;
    look_up(0);
  }

  // Where the ring is; it is empty.
  __device__ __forceinline__ void make_ring(uint32_t block_smem, uint32_t block_bars)
  {
    uint32_t warp = threadIdx.x / 32;
    smem = block_smem + warp * S::WARP_BYTES;
    bars = block_bars + warp * S::DEPTH * 8;
    policy = read_once_policy();
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < S::DEPTH; i++)
        barrier_init(bars + i * 8, 1);
      barriers_made();
    }
    __syncwarp();
  }

  __device__ __forceinline__ uint32_t token(uint32_t i) const { return token0 + i * WARPS * SLICE_TOKENS; }

  __device__ __forceinline__ void look_up(uint32_t i0)
  {
    uint32_t i = i0 + threadIdx.x % 32;
    page_id = i < n ? pages[token(i) >> page_shift] : 0;
  }

  __device__ __forceinline__ uint32_t stage(uint32_t i) const { return i % S::DEPTH; }
  __device__ __forceinline__ uint32_t turn(uint32_t i) const { return i / S::DEPTH & 1; }
  __device__ __forceinline__ uint32_t k_at(uint32_t i) const { return smem + stage(i) * 2 * S::SLICE_BYTES; }
  __device__ __forceinline__ uint32_t v_at(uint32_t i) const { return k_at(i) + S::SLICE_BYTES; }

  // Until slice i is there.
  __device__ __forceinline__ void wait(uint32_t i) const { barrier_wait(bars + stage(i) * 8, turn(i)); }

  // Slices are copied in order: i is 0, 1, ...
  __device__ __forceinline__ void copy(uint32_t i)
  {
    if (i > 0 && i % 32 == 0)
      look_up(i);
    int32_t page = __shfl_sync(0xffffffffu, page_id, i % 32);
    uint32_t lane = threadIdx.x % 32, bar = bars + stage(i) * 8, line = token(i) & ((1u << page_shift) - 1);
    if (lane == 0)
      barrier_expect(bar, 2 * S::SLICE_BYTES);
    if (lane < 2) { // K, V
      const bf16 *src = kv + (size_t)page * page_stride + (size_t)((lane << page_shift) + line) * HD;
      copy_bulk_once(lane == 0 ? k_at(i) : v_at(i), src, S::SLICE_BYTES, bar, policy);
    }
  }
};

// Fills the ring from slice n_copied on, with whole slices of the first n_tokens tokens; returns how many were copied by now.
template <int HD, int RING>
__device__ __forceinline__ uint32_t fill_ring(slice_stream<HD, RING> &in, uint32_t n_copied, uint32_t n_tokens)
{
  fence_global_writes(); // pages were written by ordinary stores
  while (n_copied < min(in.n, (uint32_t)RING) && in.token(n_copied) + SLICE_TOKENS <= n_tokens)
    in.copy(n_copied++);
  return n_copied;
}

// Lines at or past n_lines: not NaN, because their weight of zero would not remove that.
template <int HD> __device__ __forceinline__ void zero_values(uint32_t smem_v, uint32_t n_lines)
{
  for (uint32_t i = n_lines * (HD / 8) + threadIdx.x % 32; i < SLICE_TOKENS * (HD / 8); i += 32)
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(page_lines<HD>::at(smem_v, i / (HD / 8), i % (HD / 8))), "r"(0)
                 : "memory");
  __syncwarp();
}

// All of the warp's slices, of which the first n_copied are on their way.
template <int HD, int RING>
__device__ __forceinline__ void attend_slices(warp_state<HD> &st, slice_stream<HD, RING> &in, uint32_t n_copied, const uint32_t q[HD / 16][4],
                                              const attention_args &a, const td_attention_item &it, int32_t first_pos)
{
  uint32_t lane = threadIdx.x % 32, last = it.n_tokens * a.group - 1;
  int32_t pos_lo = first_pos + (int32_t)(min(lane / 4, last) / a.group), pos_hi = first_pos + (int32_t)(min(lane / 4 + 8, last) / a.group);
  for (uint32_t i = 0; i < in.n; i++) {
    uint32_t token = in.token(i);
    in.wait(i);
    if (token + SLICE_TOKENS > it.kv_end)
      zero_values<HD>(in.v_at(i), it.kv_end - token);
    process_tile<HD, SLICE_TOKENS, page_lines>(st, q, in.k_at(i), in.v_at(i), 0, token, pos_lo, pos_hi, a);
    __syncwarp();
    if (n_copied < in.n)
      in.copy(n_copied++);
  }
  finish_sums(st);
}
#endif
