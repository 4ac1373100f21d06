// A ring of tiles of keys and values that one warp copies from pages and two warpgroups attend to, in turns: while one's products
// are in the tensor cores, the other is at its softmax; and in each, the product of a tile's weights and V runs beside the softmax
// of the next tile. Tiles are counted on over all that a block does; K and V have barriers of their own, so that the ring takes
// the next K while V is still in use.
// Source: FlashAttention-3 (Shah et al. 2024, sections 3.1 and 3.2).
#pragma once

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/mbarrier.cuh"

enum { TILE_STAGES = 2, TILE_WARPGROUPS = 2 };
enum { FULL_K, EMPTY_K, FULL_V, EMPTY_V, TAIL, TILE_BARRIER_KINDS }; // one a stage of the first four kinds

#ifdef TD_HAS_WGMMA
// Of one warpgroup (its own id), or of the turn-taking of two.
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

// The pages of a tile's K or V, one lane each; those at or past the end are left out.
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
template <int HD>
__device__ __forceinline__ void zero_lines(unsigned char *tile, uint32_t n_lines)
{
  constexpr int CHUNKS = HD / 8;
  for (uint32_t i = n_lines * CHUNKS + threadIdx.x % 32; i < key_tile<HD>::KEYS * CHUNKS; i += 32)
    *(uint4 *)(tile + kv_chunk_at(HD, i / CHUNKS, i % CHUNKS) * 2) = uint4{};
  fence_shared_writes();
}

template <int HD> struct tile_ring {
  using S = key_tile<HD>;
  static constexpr uint32_t BARRIERS = TILE_BARRIER_KINDS * TILE_STAGES;
  unsigned char *smem_k, *smem_v; // TILE_STAGES tiles each
  uint32_t bars;

  __device__ __forceinline__ uint32_t bar(uint32_t kind, uint32_t n) const { return bars + (kind * TILE_STAGES + n % TILE_STAGES) * 8; }
  __device__ __forceinline__ uint32_t parity(uint32_t n) const { return n / TILE_STAGES & 1; }
  __device__ __forceinline__ void await(uint32_t kind, uint32_t n) const { barrier_wait(bar(kind, n), parity(n)); }
  __device__ __forceinline__ void give_back(uint32_t kind, uint32_t n) const // by a warpgroup, when all its warps are done
  {
    if (threadIdx.x % WG == 0)
      barrier_arrive(bar(kind, n));
  }

  // By one thread, before barriers_made.
  __device__ __forceinline__ void make() const
  {
    for (uint32_t i = 0; i < TILE_STAGES; i++) {
      barrier_init(bar(FULL_K, i), 1);
      barrier_init(bar(FULL_V, i), 1);
      barrier_init(bar(EMPTY_K, i), TILE_WARPGROUPS);
      barrier_init(bar(EMPTY_V, i), TILE_WARPGROUPS);
    }
    barrier_init(bar(TAIL, 0), 1);
  }

  __device__ __forceinline__ void copy_keys(uint32_t n, const tile_source &t) const
  {
    barrier_wait(bar(EMPTY_K, n), parity(n) ^ 1);
    copy_pages<HD>(shared_address(smem_k + n % TILE_STAGES * S::TILE_BYTES), t.k, t, bar(FULL_K, n));
  }

  // n_tails: tiles so far that were not whole.
  __device__ __forceinline__ void copy_values(uint32_t n, const tile_source &t, uint32_t &n_tails) const
  {
    unsigned char *tile = smem_v + n % TILE_STAGES * S::TILE_BYTES;
    barrier_wait(bar(EMPTY_V, n), parity(n) ^ 1);
    bool whole = t.kv0 + S::KEYS <= t.kv_end;
    uint32_t full = whole ? bar(FULL_V, n) : bar(TAIL, 0);
    copy_pages<HD>(shared_address(tile), t.k + t.page_tokens * HD, t, full);
    if (!whole) {
      barrier_wait(full, n_tails++ & 1);
      zero_lines<HD>(tile, t.kv_end - t.kv0);
      __syncwarp();
      if (threadIdx.x % 32 == 0)
        barrier_arrive(bar(FULL_V, n));
    }
  }

  // Tiles n, n + 1, ... n + n_tiles - 1 into c, by both warpgroups, of which this is number wg; queries lie at q16, in units of 16 bytes.
  // mask(c, i) hides what of tile i a row does not see. The last tile's values are left to multiply_last and end_last.
  template <class MASK>
  __device__ __forceinline__ void attend(consumer<HD> &c, uint32_t n, uint32_t n_tiles, uint32_t wg, uint32_t q16, float scale_log2,
                                         const MASK &mask) const
  {
    uint32_t my_turn = 3 + wg, their_turn = 4 - wg, k16 = warp_uniform(shared_address(smem_k) >> 4);
    float corr[2];
    c.clear();
    if (wg == 1 && n_tiles > 1)
      named_arrive(their_turn, TILE_WARPGROUPS * WG); // the first warpgroup begins
    await(FULL_K, n);
    c.multiply_keys(q16, k16 + n % TILE_STAGES * (S::TILE_BYTES / 16));
    wgmma_wait<0>();
    wgmma_hold(c.s);
    give_back(EMPTY_K, n);
    mask(c, 0);
    c.softmax(scale_log2, corr);
    c.pack_weights();
    if (n_tiles > 1)
      await(FULL_K, n + 1);
    for (uint32_t i = 1; i < n_tiles; i++) {
      uint32_t g = n + i;
      named_sync(my_turn, TILE_WARPGROUPS * WG);
      c.multiply_keys(q16, k16 + g % TILE_STAGES * (S::TILE_BYTES / 16));
      multiply_last(c, g - 1);
      if (wg == 0 || i + 1 < n_tiles)
        named_arrive(their_turn, TILE_WARPGROUPS * WG);
      wgmma_wait<1>();
      wgmma_hold(c.s);
      give_back(EMPTY_K, g);
      mask(c, i);
      c.softmax(scale_log2, corr);
      wgmma_hold(c.s);
      // The next tile's keys are waited for here, because the assembler does not move the wait for the products before this branch:
      // else it waits first and does all of the softmax afterwards, beside nothing.
      if (i + 1 < n_tiles)
        await(FULL_K, g + 1);
      end_last(c, g - 1);
      c.rescale(corr);
      c.pack_weights();
    }
  }

  __device__ __forceinline__ void multiply_last(consumer<HD> &c, uint32_t n) const
  {
    await(FULL_V, n);
    c.multiply_values(warp_uniform(shared_address(smem_v) >> 4) + n % TILE_STAGES * (S::TILE_BYTES / 16));
  }
  __device__ __forceinline__ void end_last(consumer<HD> &c, uint32_t n) const
  {
    wgmma_wait<0>();
    wgmma_hold(c.o);
    give_back(EMPTY_V, n);
  }
};

// What the copying warp does, tile after tile: a tile's K goes before the V of the tile before it, because it is needed first.
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
