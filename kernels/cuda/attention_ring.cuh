// Keys and values between one warp that copies them from pages and two warpgroups that attend to them.
//
// The one idea: the tensor cores are never without work. The two warpgroups alternate: while one's wgmmas
// run, the other is at its softmax. And in each of them, the product of a tile's weights and V runs beside
// the softmax of the next tile. K and V have a ring each, so that the next K comes while V is still in use.
// KV tiles are counted on over all that a CTA does. Source: FlashAttention-3 (Shah et al. 2024, sections 3.1
// and 3.2).
#pragma once

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/ring.cuh"

enum { TILE_STAGES = 2, TILE_WARPGROUPS = 2 };

#ifdef TD_HAS_WGMMA
// Of one warpgroup (its own id), or of two that alternate.
__device__ __forceinline__ void named_sync(uint32_t id, uint32_t threads)
{
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(uint32_t id, uint32_t threads)
{
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Where a tile's keys are: [kv0, kv0 + KEYS) of a sequence, as far as kv_end.
struct tile_source {
  const bf16 *k; // of the kv head in page 0; its V lies behind it
  const int32_t *pages;
  size_t page_stride; // elements
  uint32_t page_tokens, kv0, kv_end;
};

// The pages of a KV tile's K or V, one lane each; those at or past the end are left out.
template <int HD>
__device__ __forceinline__ void copy_pages(uint32_t dst, const bf16 *src, const tile_source &t, uint32_t bar)
{
  uint32_t lane = threadIdx.x % 32, bytes = t.page_tokens * HD * 2;
  uint32_t n = min(key_tile<HD>::KEYS, t.kv_end - t.kv0);
  uint32_t shift = log2_of(t.page_tokens);
  n = (n + t.page_tokens - 1) >> shift;
  if (lane == 0)
    barrier_expect(bar, n * bytes);
  __syncwarp();
  if (lane < n)
    copy_bulk(dst + lane * bytes, src + (size_t)t.pages[(t.kv0 >> shift) + lane] * t.page_stride, bytes, bar);
}

// The last tile of V: lines past the end must not be NaN, because their weight of zero would not remove that.
template <int HD> __device__ __forceinline__ void zero_lines(unsigned char *tile, uint32_t n_lines)
{
  constexpr int CHUNKS = HD / 8;
  for (uint32_t i = n_lines * CHUNKS + threadIdx.x % 32; i < key_tile<HD>::KEYS * CHUNKS; i += 32)
    *(uint4 *)(tile + kv_chunk_at(HD, i / CHUNKS, i % CHUNKS) * 2) = uint4{};
  fence_shared_writes();
}

template <int HD> struct tile_ring {
  using S = key_tile<HD>;
  using ring_of_tiles = ring<TILE_STAGES, S::TILE_BYTES, TILE_WARPGROUPS>;
  static constexpr uint32_t BARRIERS = 2 * ring_of_tiles::BARRIERS + 1;
  ring_of_tiles k, v;
  uint32_t tail_bar; // counts the bytes of a V that is not whole: it is full only when the rest is zero
  unsigned char *smem_v;

  __device__ __forceinline__ tile_ring(unsigned char *smem_k, unsigned char *tiles_v, uint32_t bars)
      : smem_v(tiles_v)
  {
    k.place(shared_address(smem_k), bars);
    v.place(shared_address(smem_v), bars + ring_of_tiles::BARRIERS * 8);
    tail_bar = bars + 2 * ring_of_tiles::BARRIERS * 8;
  }

  // By a warpgroup, when all its warps are done.
  __device__ __forceinline__ static void release(const ring_of_tiles &r, uint32_t n)
  {
    if (threadIdx.x % WG == 0)
      r.release(r.nth(n).index);
  }

  // By one thread, before barriers_made.
  __device__ __forceinline__ void make() const
  {
    k.init(0, TILE_STAGES);
    v.init(0, TILE_STAGES);
    barrier_init(tail_bar, 1);
  }

  __device__ __forceinline__ void copy_keys(uint32_t n, const tile_source &t) const
  {
    const pipeline_stage s = k.nth_as_producer(n);
    k.acquire(s);
    copy_pages<HD>(k.data(s.index), t.k, t, k.full(s.index));
  }

  // n_tails: tiles so far that were not whole.
  __device__ __forceinline__ void copy_values(uint32_t n, const tile_source &t, uint32_t &n_tails) const
  {
    const pipeline_stage s = v.nth_as_producer(n);
    v.acquire(s);
    bool whole = t.kv0 + S::KEYS <= t.kv_end;
    uint32_t bar = whole ? v.full(s.index) : tail_bar;
    copy_pages<HD>(v.data(s.index), t.k + t.page_tokens * HD, t, bar);
    if (!whole) {
      barrier_wait(bar, n_tails++ & 1);
      zero_lines<HD>(smem_v + s.index * S::TILE_BYTES, t.kv_end - t.kv0);
      __syncwarp();
      if (threadIdx.x % 32 == 0)
        v.commit(s.index);
    }
  }

  // KV tiles n, n + 1, ... n + n_tiles - 1 into c, by both warpgroups, of which this is number wg; queries
  // lie at q16, in units of 16 bytes. mask(c, i) hides what of tile i a query row does not see. The last
  // tile's values are left to multiply_last and end_last.
  template <class MASK>
  __device__ __forceinline__ void attend(consumer<HD> &c, uint32_t n, uint32_t n_tiles, uint32_t wg,
                                         uint32_t q16, float scale_log2, const MASK &mask) const
  {
    uint32_t mine = 3 + wg, theirs = 4 - wg, k16 = warp_uniform(k.first >> 4); // named barriers
    float corr[2];
    c.clear();
    if (wg == 1 && n_tiles > 1)
      named_arrive(theirs, TILE_WARPGROUPS * WG); // the first warpgroup begins
    k.wait_full(k.nth(n));
    c.multiply_keys(q16, k16 + n % TILE_STAGES * (S::TILE_BYTES / 16));
    wgmma_wait<0>();
    wgmma_hold(c.s);
    release(k, n);
    mask(c, 0);
    c.softmax(scale_log2, corr);
    c.pack_weights();
    if (n_tiles > 1)
      k.wait_full(k.nth(n + 1));
    for (uint32_t i = 1; i < n_tiles; i++) { // main loop
      uint32_t g = n + i;
      named_sync(mine, TILE_WARPGROUPS * WG);
      c.multiply_keys(q16, k16 + g % TILE_STAGES * (S::TILE_BYTES / 16));
      multiply_last(c, g - 1);
      if (wg == 0 || i + 1 < n_tiles)
        named_arrive(theirs, TILE_WARPGROUPS * WG);
      wgmma_wait<1>();
      wgmma_hold(c.s);
      release(k, g);
      mask(c, i);
      c.softmax(scale_log2, corr);
      wgmma_hold(c.s);
      // The next tile's keys are waited for here, because the assembler does not move the wait for the
      // products before this branch: else it waits first and does all of the softmax afterwards, beside
      // nothing.
      if (i + 1 < n_tiles)
        k.wait_full(k.nth(g + 1));
      end_last(c, g - 1);
      c.rescale(corr);
      c.pack_weights();
    }
  }

  __device__ __forceinline__ void multiply_last(consumer<HD> &c, uint32_t n) const
  {
    v.wait_full(v.nth(n));
    c.multiply_values(warp_uniform(v.first >> 4) + n % TILE_STAGES * (S::TILE_BYTES / 16));
  }
  __device__ __forceinline__ void end_last(consumer<HD> &c, uint32_t n) const
  {
    wgmma_wait<0>();
    wgmma_hold(c.o);
    release(v, n);
  }
};

// The producer's loop: a tile's K goes before the V of the tile before it, because it is needed first.
template <int HD> struct tile_copies {
  const tile_ring<HD> &ring;
  uint32_t n, n_tails; // so far
  tile_source before;
  bool behind; // the V of the tile before is still to be copied

  __device__ __forceinline__ void add(const tile_source &t)
  {
    ring.copy_keys(n, t);
    end();
    before = t;
    behind = true;
    n++;
  }
  __device__ __forceinline__ void end()
  {
    if (behind)
      ring.copy_values(n - 1, before, n_tails);
    behind = false;
  }
};
#endif
