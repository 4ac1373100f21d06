// How one warp streams keys and values through its own rings.
//
// No warp waits for another. A warp is producer and only consumer of its rings, so they have no empty
// barriers: __syncwarp shows that a stage has been read. A KV tile is 32 tokens. K and V have separate rings,
// so the next tile's keys are loaded while this tile's values are multiplied.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/ring.cuh"

enum {
  KV_TILE_TOKENS = 32, // tokens of a KV tile
  COPY_TOKENS = 16,    // tokens of one copy: the two halves of a KV tile may be in different pages
};

// STAGES: pipeline stages of each of a warp's two rings.
template <int HD, int STAGES> struct warp_ring_shape {
  static constexpr int COPY_BYTES = COPY_TOKENS * HD * 2;       // one copy of K, or of V
  static constexpr int KV_TILE_BYTES = 2 * COPY_BYTES;          // of K, or of V
  static constexpr int WARP_BYTES = STAGES * 2 * KV_TILE_BYTES; // K, V, K, V ...
  static constexpr int WARP_BARRIERS = STAGES * 2;
};

#ifdef TD_HAS_MBARRIER
// The KV tiles of a work item that one warp reads: all, or every n-th.
template <int HD, int STAGES> struct kv_tile_reader {
  using S = warp_ring_shape<HD, STAGES>;
  const bf16 *kv; // K and V of the kv head in page 0
  const int32_t *pages;
  size_t page_stride;
  uint32_t page_shift, kv_end; // page_shift: log2 of a page's tokens
  uint32_t token0, stride, n;  // first tile's token; tokens from tile to tile; number of tiles
  ring<STAGES, 2 * S::KV_TILE_BYTES, 0> k, v;
  uint64_t policy;
  int32_t page_id; // lane l: page id of half l % 2 of tile l / 2, of the current 16 tiles

  // Selects every n_warps-th KV tile from number first_warp on. With a sliding window, whole tiles that no
  // query row sees are skipped, so that all tiles but a sequence's last are full.
  __device__ __forceinline__ void open(const attention_args &a, const device_batch &batch,
                                       const td_attention_item &it, uint32_t kv_head, uint32_t first_warp,
                                       uint32_t n_warps)
  {
    uint32_t kv_begin = it.kv_begin, seen = it.position + 1;
    if (a.window > 0 && seen > a.window + kv_begin)
      kv_begin += (seen - a.window - kv_begin) / KV_TILE_TOKENS * KV_TILE_TOKENS;
    size_t half = (size_t)batch.page_tokens * HD;
    kv = a.kv + kv_head * 2 * half;
    pages = batch.page_table + it.page_table_offset;
    page_stride = half * 2 * a.n_kv_heads;
    page_shift = log2_of(batch.page_tokens);
    kv_end = it.kv_end;
    token0 = kv_begin + first_warp * KV_TILE_TOKENS;
    stride = n_warps * KV_TILE_TOKENS;
    n = token0 < kv_end ? (kv_end - token0 - 1) / stride + 1 : 0;
    look_up(0);
  }

  // Sets up the warp's rings with empty stages.
  __device__ __forceinline__ void make_ring(uint32_t cta_smem, uint32_t cta_bars)
  {
    uint32_t warp = threadIdx.x / 32;
    cta_smem += warp * S::WARP_BYTES;
    cta_bars += warp * S::WARP_BARRIERS * 8;
    k.place(cta_smem, cta_bars);
    v.place(cta_smem + S::KV_TILE_BYTES, cta_bars + STAGES * 8);
    policy = read_once_policy();
    if (threadIdx.x % 32 == 0) {
      k.init(0, STAGES);
      v.init(0, STAGES);
      publish_barriers();
    }
    __syncwarp();
  }

  __device__ __forceinline__ uint32_t token(uint32_t i) const { return token0 + i * stride; }

  __device__ __forceinline__ void look_up(uint32_t i0)
  {
    uint32_t lane = threadIdx.x % 32, at = token(i0 + lane / 2) + lane % 2 * COPY_TOKENS;
    page_id = at < kv_end ? pages[at >> page_shift] : 0;
  }

  // Shared addresses of K and V of tile i.
  __device__ __forceinline__ uint32_t k_at(uint32_t i) const { return k.data(k.nth(i).index); }
  __device__ __forceinline__ uint32_t v_at(uint32_t i) const { return v.data(v.nth(i).index); }
  __device__ __forceinline__ void wait_keys(uint32_t i) const { k.wait_full(k.nth(i)); }
  __device__ __forceinline__ void wait_values(uint32_t i) const { v.wait_full(v.nth(i)); }

  // Tiles must be copied in order, each tile's keys before its values.
  __device__ __forceinline__ void copy_keys(uint32_t i)
  {
    if (i > 0 && i % 16 == 0)
      look_up(i);
    copy(i, k_at(i), k.full(k.nth(i).index), 0);
  }

  __device__ __forceinline__ void copy_values(uint32_t i) { copy(i, v_at(i), v.full(v.nth(i).index), 1); }

private:
  __device__ __forceinline__ void copy(uint32_t i, uint32_t dst, uint32_t bar, uint32_t half)
  {
    uint32_t lane = threadIdx.x % 32, at = token(i) + lane * COPY_TOKENS,
             line = at & ((1u << page_shift) - 1);
    int32_t page = __shfl_sync(0xffffffffu, page_id, i % 16 * 2 + lane % 2);
    if (lane == 0)
      barrier_expect(bar, at + COPY_TOKENS < kv_end ? 2 * S::COPY_BYTES : S::COPY_BYTES);
    if (lane < 2 && at < kv_end)
      copy_bulk_once(dst + lane * S::COPY_BYTES,
                     kv + (size_t)page * page_stride + (size_t)((half << page_shift) + line) * HD,
                     S::COPY_BYTES, bar, policy);
  }
};

// The prologue: fills the rings from tile n_copied on, with tiles that lie within the first n_tokens tokens.
// Returns the number of tiles copied so far.
template <int HD, int STAGES>
__device__ __forceinline__ uint32_t fill_ring(kv_tile_reader<HD, STAGES> &in, uint32_t n_copied,
                                              uint32_t n_tokens)
{
  fence_global_writes(); // pages were written with ordinary stores
  for (; n_copied < min(in.n, (uint32_t)STAGES) &&
         min(in.token(n_copied) + KV_TILE_TOKENS, in.kv_end) <= n_tokens;
       n_copied++) {
    in.copy_keys(n_copied);
    in.copy_values(n_copied);
  }
  return n_copied;
}

// Zeroes lines from n_lines on. Their softmax weight is zero, but 0 * NaN would still be NaN.
template <int HD> __device__ __forceinline__ void zero_values(uint32_t smem_v, uint32_t n_lines)
{
  for (uint32_t i = n_lines * (HD / 8) + threadIdx.x % 32; i < KV_TILE_TOKENS * (HD / 8); i += 32)
    store_shared_16(page_lines<HD>::at(smem_v, i / (HD / 8), i % (HD / 8)), make_uint4(0, 0, 0, 0));
  __syncwarp();
}

// The main loop over all of the warp's KV tiles. fill_ring has already queued the first ones.
template <int HD, int STAGES>
__device__ __forceinline__ void attend_kv_tiles(warp_state<HD> &st, kv_tile_reader<HD, STAGES> &in,
                                                const uint32_t q[HD / 16][4], const attention_args &a,
                                                const query_positions &pos)
{
  for (uint32_t i = 0; i < in.n; i++) {
    uint32_t token = in.token(i);
    float s[KV_TILE_TOKENS / 8][4];
    in.wait_keys(i);
    multiply_qk<HD, KV_TILE_TOKENS, page_lines>(s, q, in.k_at(i), 0);
    __syncwarp();
    if (i + STAGES < in.n)
      in.copy_keys(i + STAGES);
    online_softmax<HD, KV_TILE_TOKENS>(st, s, token, pos, a);
    in.wait_values(i);
    if (token + KV_TILE_TOKENS > in.kv_end)
      zero_values<HD>(in.v_at(i), in.kv_end - token);
    multiply_pv<HD, KV_TILE_TOKENS, page_lines>(st, s, in.v_at(i), 0);
    __syncwarp();
    if (i + STAGES < in.n)
      in.copy_values(i + STAGES);
  }
  reduce_lanes(st);
}
#endif
