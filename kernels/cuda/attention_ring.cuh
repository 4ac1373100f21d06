// Rings of keys and values between a producer warp, which copies them from pages, and two consumer
// warpgroups.
//
// The tensor cores always have work. The two warpgroups alternate (ping-pong): while the wgmmas of one run,
// the other computes its softmax. Inside a warpgroup, P*V of one tile runs beside the softmax of the next
// tile. K and V have separate rings, so the next K is loaded while V is still in use. KV tiles are numbered
// over all work items of a CTA. The two CTAs of a cluster may have neighbouring query rows of one sequence
// and kv head. Then each copies half of a tile's pages to both (multicast), and a stage is empty when both
// have read it. Source: FlashAttention-3 (Shah et al. 2024, sections 3.1 and 3.2).
#pragma once

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/ring.cuh"

enum { TILE_WARPGROUPS = 2 };
constexpr int tile_stages(int head_dim) { return head_dim == 256 ? 2 : 3; } // as many as fit in shared memory

#ifdef TD_HAS_WGMMA
// Named barriers: one for each warpgroup (its own id), and those by which the two warpgroups alternate.
__device__ __forceinline__ void named_sync(uint32_t id, uint32_t threads)
{
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(uint32_t id, uint32_t threads)
{
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A KV tile's source: keys [kv0, kv0 + KEYS) of a sequence, cut off at kv_end.
struct kv_tile_source {
  const bf16 *k; // K of the kv head in page 0; V follows it
  const int32_t *pages;
  size_t page_stride; // elements
  uint32_t page_tokens, kv0, kv_end;
};

// A shared address in units of 16 bytes, as in wgmma's descriptors. In a cluster the upper bits name the CTA;
// descriptors leave them out.
__device__ __forceinline__ uint32_t operand_address(uint32_t address) { return (address & 0x3ffff) >> 4; }

// Copies the pages of a KV tile's K or V, one page a lane, without pages at or past kv_end. In a cluster of
// CTAS CTAs, each CTA copies every CTAS-th page to all of them.
template <int HD, int CTAS>
__device__ __forceinline__ void copy_pages(uint32_t dst, const bf16 *src, const kv_tile_source &t,
                                           uint32_t bar)
{
  uint32_t lane = threadIdx.x % 32, bytes = t.page_tokens * HD * 2;
  uint32_t n = min(kv_tile_shape<HD>::KEYS, t.kv_end - t.kv0);
  uint32_t shift = log2_of(t.page_tokens);
  n = (n + t.page_tokens - 1) >> shift;
  if (lane == 0)
    barrier_expect(bar, n * bytes);
  __syncwarp();
  if (lane >= n || (CTAS > 1 && lane % CTAS != cluster_rank()))
    return;
  const bf16 *page = src + (size_t)t.pages[(t.kv0 >> shift) + lane] * t.page_stride;
  if (CTAS > 1)
    copy_bulk_multicast(dst + lane * bytes, page, bytes, bar, (1 << CTAS) - 1);
  else
    copy_bulk(dst + lane * bytes, page, bytes, bar);
}

// Zeroes lines past the end in the last tile of V. Their softmax weight is zero, but 0 * NaN would still be
// NaN.
template <int HD> __device__ __forceinline__ void zero_lines(unsigned char *tile, uint32_t n_lines)
{
  constexpr int CHUNKS = HD / 8;
  for (uint32_t i = n_lines * CHUNKS + threadIdx.x % 32; i < kv_tile_shape<HD>::KEYS * CHUNKS; i += 32)
    *(uint4 *)(tile + kv_chunk_at(HD, i / CHUNKS, i % CHUNKS) * 2) = uint4{};
  fence_shared_writes();
}

template <int HD, int CTAS, int STAGES = tile_stages(HD)> struct tile_ring {
  using S = kv_tile_shape<HD>;
  static constexpr int TILE_STAGES = STAGES;
  using ring_of_tiles = ring<TILE_STAGES, S::TILE_BYTES, TILE_WARPGROUPS * CTAS>;
  static constexpr uint32_t BARRIERS = 2 * ring_of_tiles::BARRIERS + TILE_STAGES;
  ring_of_tiles k, v;
  // Barriers that count the bytes of a V tile that is not whole. Its stage becomes full only after the rest
  // was zeroed. There is one for each stage, because the other CTA may be a tile ahead, but never a round of
  // the ring.
  uint32_t tail_bars;
  unsigned char *smem_v;

  __device__ __forceinline__ tile_ring(unsigned char *smem_k, unsigned char *tiles_v, uint32_t bars)
      : smem_v(tiles_v)
  {
    k.place(shared_address(smem_k), bars);
    v.place(shared_address(smem_v), bars + ring_of_tiles::BARRIERS * 8);
    tail_bars = bars + 2 * ring_of_tiles::BARRIERS * 8;
  }

  // Called by a warpgroup when all its warps have read a stage. In a cluster, one warp for each CTA releases
  // the stage there.
  __device__ __forceinline__ static void release(const ring_of_tiles &r, pipeline_stage s)
  {
    uint32_t warp = threadIdx.x % WARPGROUP_THREADS / 32;
    if constexpr (CTAS == 1) {
      if (threadIdx.x % WARPGROUP_THREADS == 0)
        r.release(s.index);
    } else if (threadIdx.x % 32 == 0 && warp < CTAS) {
      barrier_arrive_in_cluster(address_in_cluster(r.empty(s.index), warp));
    }
  }

  // The stage of the next tile. Computed by increments, because a division by three would take issue slots
  // beside the wgmmas.
  __device__ __forceinline__ static pipeline_stage after(pipeline_stage s)
  {
    bool wraps = s.index + 1 == TILE_STAGES;
    return {warp_uniform(wraps ? 0 : s.index + 1), s.phase ^ wraps};
  }

  // One thread calls it, before publish_barriers.
  __device__ __forceinline__ void init_barriers() const
  {
    k.init(0, TILE_STAGES);
    v.init(0, TILE_STAGES);
    for (uint32_t i = 0; i < TILE_STAGES; i++)
      barrier_init(tail_bars + i * 8, 1);
  }

  __device__ __forceinline__ void copy_keys(uint32_t n, const kv_tile_source &t) const
  {
    const pipeline_stage s = k.nth_as_producer(n);
    k.acquire(s);
    copy_pages<HD, CTAS>(k.data(s.index), t.k, t, k.full(s.index));
  }

  // tails: bit i is the parity of the number of tiles in stage i so far that were not whole.
  __device__ __forceinline__ void copy_values(uint32_t n, const kv_tile_source &t, uint32_t &tails) const
  {
    const pipeline_stage s = v.nth_as_producer(n);
    v.acquire(s);
    bool whole = t.kv0 + S::KEYS <= t.kv_end;
    uint32_t bar = whole ? v.full(s.index) : tail_bars + s.index * 8;
    copy_pages<HD, CTAS>(v.data(s.index), t.k + t.page_tokens * HD, t, bar);
    if (!whole) {
      barrier_wait(bar, tails >> s.index & 1);
      tails ^= 1u << s.index;
      zero_lines<HD>(smem_v + s.index * S::TILE_BYTES, t.kv_end - t.kv0);
      __syncwarp();
      if (threadIdx.x % 32 == 0)
        v.commit(s.index);
    }
  }

  // Attends to n_tiles KV tiles from stage s on and accumulates in c. Both warpgroups call it; this one is
  // number wg. q16: address of the query rows in units of 16 bytes. mask(c, i) hides the keys of tile i that
  // a query row does not see. P*V of the last tile is left to start_pv and finish_pv, which take the
  // stage returned here.
  template <class MASK>
  __device__ __forceinline__ pipeline_stage attend(consumer<HD> &c, pipeline_stage s, uint32_t n_tiles,
                                                   uint32_t wg, uint32_t q16, float scale_log2,
                                                   const MASK &mask) const
  {
    uint32_t mine = 3 + wg, theirs = 4 - wg, k16 = warp_uniform(operand_address(k.first)); // named barriers
    float corr[2];
    c.clear();
    if (wg == 1 && n_tiles > 1)
      named_arrive(theirs, TILE_WARPGROUPS * WARPGROUP_THREADS); // the first warpgroup begins
    k.wait_full(s);
    c.multiply_qk(q16, k16 + s.index * (S::TILE_BYTES / 16));
    wgmma_wait<0>();
    wgmma_fence_operand(c.s);
    release(k, s);
    mask(c, 0);
    c.online_softmax(scale_log2, corr);
    c.pack_weights();
    if (n_tiles > 1)
      k.wait_full(after(s));
    for (uint32_t i = 1; i < n_tiles; i++) { // main loop
      pipeline_stage before = s;
      s = after(s);
      named_sync(mine, TILE_WARPGROUPS * WARPGROUP_THREADS);
      c.multiply_qk(q16, k16 + s.index * (S::TILE_BYTES / 16));
      start_pv(c, before);
      if (wg == 0 || i + 1 < n_tiles)
        named_arrive(theirs, TILE_WARPGROUPS * WARPGROUP_THREADS);
      wgmma_wait<1>();
      wgmma_fence_operand(c.s);
      release(k, s);
      mask(c, i);
      c.online_softmax(scale_log2, corr);
      wgmma_fence_operand(c.s);
      // The assembler does not move the wait for the wgmmas (finish_pv) before this branch. Without the
      // branch it does, and then the softmax would run after the wgmmas instead of beside them.
      if (i + 1 < n_tiles)
        k.wait_full(after(s));
      finish_pv(c, before);
      c.rescale(corr);
      c.pack_weights();
    }
    return s;
  }

  __device__ __forceinline__ void start_pv(consumer<HD> &c, pipeline_stage s) const
  {
    v.wait_full(s);
    c.multiply_pv(warp_uniform(operand_address(v.first)) + s.index * (S::TILE_BYTES / 16));
  }
  __device__ __forceinline__ void finish_pv(consumer<HD> &c, pipeline_stage s) const
  {
    wgmma_wait<0>();
    wgmma_fence_operand(c.o);
    release(v, s);
  }
};

// The producer's loop. It copies a tile's K before the V of the tile before, because K is needed first.
template <int HD, int CTAS, int STAGES = tile_stages(HD)> struct tile_producer {
  const tile_ring<HD, CTAS, STAGES> &ring;
  uint32_t n, tails; // tiles so far; tails as in copy_values
  kv_tile_source before;
  bool v_is_pending; // the V of the tile before is still to be copied

  __device__ __forceinline__ void add(const kv_tile_source &t)
  {
    ring.copy_keys(n, t);
    end();
    before = t;
    v_is_pending = true;
    n++;
  }
  __device__ __forceinline__ void end()
  {
    if (v_is_pending)
      ring.copy_values(n - 1, before, tails);
    v_is_pending = false;
  }
};
#endif
