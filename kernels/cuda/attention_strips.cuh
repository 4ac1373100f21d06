// How a warp streams keys and values through a ring of its own: strips of 32 tokens, K and V each with a barrier, so that the next strip's
// keys come while this one's values are multiplied.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/mbarrier.cuh"

enum {
  STRIP_TOKENS = 32,
  COPY_TOKENS = 16, // of one copy: a strip's two halves may lie in different pages
};

// STAGES: strips of a warp's ring.
template <int HD, int STAGES> struct strip_shape {
  static constexpr int COPY_BYTES = COPY_TOKENS * HD * 2; // of K, or of V
  static constexpr int STRIP_BYTES = 2 * COPY_BYTES;      // likewise
  static constexpr int WARP_BYTES = STAGES * 2 * STRIP_BYTES;
  static constexpr int WARP_BARRIERS = STAGES * 2;
};

#ifdef TD_HAS_MBARRIER
// What a warp reads of an item's keys: all of them, or its share.
template <int HD, int STAGES> struct strip_stream {
  using S = strip_shape<HD, STAGES>;
  const bf16 *kv; // of the kv head in page 0
  const int32_t *pages;
  size_t page_stride;
  uint32_t page_shift, kv_end, token0, stride, n; // log2 of a page's tokens; first strip's token; tokens from strip to strip; strips
  uint32_t smem, bars;
  uint64_t policy;
  int32_t page_id; // lane l: the page of half l % 2 of strip l / 2 of the current 16

  // Every n_warps-th strip from the first_warp-th on. Sliding windows leave out strips that no query sees: whole ones, so that all but a
  // row's last are full.
  __device__ __forceinline__ void open(const attention_args &a, const device_batch &batch, const td_attention_item &it,
                                       uint32_t kv_head, uint32_t first_warp, uint32_t n_warps)
  {
    uint32_t kv_begin = it.kv_begin, seen = it.position + 1;
    if (a.window > 0 && seen > a.window + kv_begin)
      kv_begin += (seen - a.window - kv_begin) / STRIP_TOKENS * STRIP_TOKENS;
    size_t half = (size_t)batch.page_tokens * HD;
    kv = a.kv + kv_head * 2 * half;
    pages = batch.page_table + it.page_table_offset;
    page_stride = half * 2 * a.n_kv_heads;
    page_shift = log2_of(batch.page_tokens);
    kv_end = it.kv_end;
    token0 = kv_begin + first_warp * STRIP_TOKENS;
    stride = n_warps * STRIP_TOKENS;
    n = token0 < kv_end ? (kv_end - token0 - 1) / stride + 1 : 0;
    look_up(0);
  }

  // Where the ring is; it is empty.
  __device__ __forceinline__ void make_ring(uint32_t block_smem, uint32_t block_bars)
  {
    uint32_t warp = threadIdx.x / 32;
    smem = block_smem + warp * S::WARP_BYTES;
    bars = block_bars + warp * S::WARP_BARRIERS * 8;
    policy = read_once_policy();
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < S::WARP_BARRIERS; i++)
        barrier_init(bars + i * 8, 1);
      barriers_made();
    }
    __syncwarp();
  }

  __device__ __forceinline__ uint32_t token(uint32_t i) const { return token0 + i * stride; }

  __device__ __forceinline__ void look_up(uint32_t i0)
  {
    uint32_t lane = threadIdx.x % 32, at = token(i0 + lane / 2) + lane % 2 * COPY_TOKENS;
    page_id = at < kv_end ? pages[at >> page_shift] : 0;
  }

  __device__ __forceinline__ uint32_t stage(uint32_t i) const { return i % STAGES; }
  __device__ __forceinline__ uint32_t turn(uint32_t i) const { return i / STAGES & 1; }
  __device__ __forceinline__ uint32_t k_at(uint32_t i) const { return smem + stage(i) * 2 * S::STRIP_BYTES; }
  __device__ __forceinline__ uint32_t v_at(uint32_t i) const { return k_at(i) + S::STRIP_BYTES; }
  __device__ __forceinline__ void wait_keys(uint32_t i) const { barrier_wait(bars + stage(i) * 16, turn(i)); }
  __device__ __forceinline__ void wait_values(uint32_t i) const { barrier_wait(bars + stage(i) * 16 + 8, turn(i)); }

  // Strips are copied in order, the keys of each before its values.
  __device__ __forceinline__ void copy_keys(uint32_t i)
  {
    if (i > 0 && i % 16 == 0)
      look_up(i);
    copy(i, k_at(i), bars + stage(i) * 16, 0);
  }

  __device__ __forceinline__ void copy_values(uint32_t i) { copy(i, v_at(i), bars + stage(i) * 16 + 8, 1); }

private:
  __device__ __forceinline__ void copy(uint32_t i, uint32_t dst, uint32_t bar, uint32_t v)
  {
    uint32_t lane = threadIdx.x % 32, at = token(i) + lane * COPY_TOKENS, line = at & ((1u << page_shift) - 1);
    int32_t page = __shfl_sync(0xffffffffu, page_id, i % 16 * 2 + lane % 2);
    if (lane == 0)
      barrier_expect(bar, at + COPY_TOKENS < kv_end ? 2 * S::COPY_BYTES : S::COPY_BYTES);
    if (lane < 2 && at < kv_end)
      copy_bulk_once(dst + lane * S::COPY_BYTES, kv + (size_t)page * page_stride + (size_t)((v << page_shift) + line) * HD, S::COPY_BYTES,
                     bar, policy);
  }
};

// Fills the ring from strip n_copied on, with whole strips of the first n_tokens tokens; returns how many were copied by now.
template <int HD, int STAGES>
__device__ __forceinline__ uint32_t fill_ring(strip_stream<HD, STAGES> &in, uint32_t n_copied, uint32_t n_tokens)
{
  fence_global_writes(); // pages were written by ordinary stores
  for (; n_copied < min(in.n, (uint32_t)STAGES) && min(in.token(n_copied) + STRIP_TOKENS, in.kv_end) <= n_tokens; n_copied++) {
    in.copy_keys(n_copied);
    in.copy_values(n_copied);
  }
  return n_copied;
}

// Lines at or past n_lines: not NaN, because their weight of zero would not remove that.
template <int HD> __device__ __forceinline__ void zero_values(uint32_t smem_v, uint32_t n_lines)
{
  for (uint32_t i = n_lines * (HD / 8) + threadIdx.x % 32; i < STRIP_TOKENS * (HD / 8); i += 32)
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(page_lines<HD>::at(smem_v, i / (HD / 8), i % (HD / 8))), "r"(0)
                 : "memory");
  __syncwarp();
}

// All of the warp's strips, of which the ring has the first already.
template <int HD, int STAGES>
__device__ __forceinline__ void attend_strips(warp_state<HD> &st, strip_stream<HD, STAGES> &in, const uint32_t q[HD / 16][4],
                                              const attention_args &a, const td_attention_item &it)
{
  const query_positions pos = positions_of(it, a, 0);
  for (uint32_t i = 0; i < in.n; i++) {
    uint32_t token = in.token(i);
    float s[STRIP_TOKENS / 8][4];
    in.wait_keys(i);
    score<HD, STRIP_TOKENS, page_lines>(s, q, in.k_at(i), 0);
    __syncwarp();
    if (i + STAGES < in.n)
      in.copy_keys(i + STAGES);
    soften<HD, STRIP_TOKENS>(st, s, token, pos, a);
    in.wait_values(i);
    if (token + STRIP_TOKENS > in.kv_end)
      zero_values<HD>(in.v_at(i), in.kv_end - token);
    add_values<HD, STRIP_TOKENS, page_lines>(st, s, in.v_at(i), 0);
    __syncwarp();
    if (i + STAGES < in.n)
      in.copy_values(i + STAGES);
  }
  finish_sums(st);
}
#endif
