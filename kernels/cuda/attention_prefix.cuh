// Attention of a shared-prefix group's common keys, computed once for all members.
//
// A shared run of keys is read once and meets enough query rows for wgmma. (Splits of small groups, which
// have too few, are computed like decodes: attention_decode.cu.) In the launch of decode attention, some CTAs
// take a prefix split (kernels/attention/plan.h) and a kv head: the split's keys against the queries of the
// group's members, at most 64 query rows. Such a CTA takes as much shared memory and as many registers as a
// CTA of decodes, so both kinds are resident on an SM together: one keeps the tensor cores busy, the other
// memory. The result is a partial for each member. The CTA of a member's private KV waits for the partials of
// the member's prefix splits and reduces them.
//
// CTAs start in the order of their numbers and prefix splits come first, so no CTA waits for one that cannot
// have started. A flag shows that a split is done. No other launch sets a flag to the same value, so flags
// are never reset. Source: PAT (packing by shared prefix), POD-Attention (both kinds of work on one SM).
#pragma once

#include "kernels/cuda/attention_partials.cuh"
#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/attention_flags.cuh"
#include "kernels/cuda/cp_async.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/rope.cuh"

// The plan of shared-prefix groups, and the memory of its partials.
struct shared_prefixes {
  const unsigned char *plan; // device copy of the attention plan
  unsigned char *partials;   // [slots][GQA group] of TD_ATTENTION_PARTIAL_BYTES
  uint64_t *done;            // flags [prefix splits, kv heads]: launch_flag of the last launch that computed
                             // the split
  uint32_t launch;           // a number that no other launch of the step has
};

#ifdef TD_HAS_MBARRIER
__device__ __forceinline__ uint64_t launch_flag(const shared_prefixes &shared, const device_batch &batch)
{
  return (uint64_t)batch.counts[COUNT_STEP] << 32 | shared.launch;
}

// Called by all threads when they have stored a split's partials.
__device__ __forceinline__ void tell_done(const attention_args &a, const device_batch &batch,
                                          const shared_prefixes &shared, const td_attention_item &split,
                                          uint32_t kv_head)
{
  __syncthreads();
  if (threadIdx.x == 0)
    set_flag(shared.done + (size_t)split.first_partial * a.n_kv_heads + kv_head, launch_flag(shared, batch));
}
#endif

#ifdef __CUDACC__
__device__ __forceinline__ const td_attention_member *members_of(const shared_prefixes &shared)
{
  return (const td_attention_member *)(shared.plan + ((const td_attention_header *)shared.plan)->members_at);
}

// The partials of a prefix split and a kv head: [members, GQA group].
template <int HD>
__device__ __forceinline__ unsigned char *partials_of(const attention_args &a, const shared_prefixes &shared,
                                                      const td_attention_item &split, uint32_t kv_head)
{
  return partial_at<HD>(shared.partials,
                        (size_t)(split.partial + kv_head * split.n_partials * split.n_members) * a.gqa_group);
}
#endif

template <int HD> struct prefix_tile {
  static constexpr uint32_t KEYS = 64, BYTES = KEYS * HD * 2; // bytes of K, of V, or of the queries
  static constexpr uint32_t STAGES = HD == 64 ? 7 : 3, ALL_BYTES = (1 + STAGES) * BYTES;
  static constexpr uint32_t BARRIERS = STAGES * 2;
  static_assert(KEYS == PREFIX_TILE_ROWS, "queries have a tile's room");
};

// A warp's copy of what it must know of the CTA's consecutive prefix splits. While a warp attends to one
// split, it copies the data to begin the next. Otherwise three dependent loads would come between two splits.
// A warp reads only what it copied itself, so it waits for no other warp.
struct split_prefetch {
  td_attention_item items[3];                    // in rotation: this split, the next, and the one after that
  td_attention_member members[PREFIX_TILE_ROWS]; // of the next split
  int32_t pages[32];                             // first pages of the next split
};
static_assert(sizeof(td_attention_member) == 16, "copied at once");

#ifdef TD_HAS_WGMMA
__device__ __forceinline__ void copy_item(td_attention_item *dst, const td_attention_item *src)
{
  if (threadIdx.x % 32 < sizeof *src / 16)
    cp_async_16((uint4 *)dst + threadIdx.x % 32, (const uint4 *)src + threadIdx.x % 32);
}

// Called by a warp that no longer needs data of the split before. next: index in `items` of the next split.
__device__ __forceinline__ void prefetch_split(split_prefetch *prefetched, uint32_t next,
                                               const td_attention_item *items,
                                               const td_attention_member *members, const device_batch &batch)
{
  const td_attention_item &it = prefetched->items[next];
  uint32_t lane = threadIdx.x % 32, shift = log2_of(batch.page_tokens);
  uint32_t n_pages = (it.kv_end - it.kv_begin + batch.page_tokens - 1) >> shift;
  for (uint32_t m = lane; m < it.n_members; m += 32)
    cp_async_16(&prefetched->members[m], &members[it.member + m]);
  if (lane < n_pages)
    cp_async_4(&prefetched->pages[lane],
               batch.page_table + it.page_table_offset + (it.kv_begin >> shift) + lane);
  if (it.next > 0)
    copy_item(&prefetched->items[next == 2 ? 0 : next + 1], &items[it.next]);
}

__device__ __forceinline__ void await_copies()
{
  cp_async_wait_all();
  __syncwarp();
}

// K and V of a split's KV tiles, numbered in the order of use: a tile's K comes before the V of the tile
// before. The first warp copies K, the second V. All four warps attend to them, so both producers are also
// consumers.
template <int HD> struct prefix_ring {
  using S = prefix_tile<HD>;
  const bf16 *kv; // in page 0 of the kv head: K for the first warp, V for the second
  const int32_t *pages,
      *first_pages; // first_pages: the first 32 pages or fewer, from memory or split_prefetch
  size_t page_stride;
  uint32_t page_shift, n_keys, n; // page_shift: log2 of a page's tokens; n: KV tiles of the split
  int32_t page_id;                // lane l: page l of the split's current 32
  ring<S::STAGES, S::BYTES, WARPGROUP_THREADS / 32> stages;

  // Returns the stage that is needed next.
  __device__ __forceinline__ pipeline_stage next_stage()
  {
    pipeline_stage s = stages.now;
    stages.advance();
    return s;
  }

  // Called by all threads; ends with a CTA barrier.
  __device__ __forceinline__ void setup(const device_batch &batch, uint32_t smem, uint32_t bars)
  {
    page_shift = log2_of(batch.page_tokens);
    stages.place(smem, bars);
    if (threadIdx.x == 0) {
      stages.init(0, S::STAGES);
      publish_barriers();
    }
    __syncthreads();
  }

  // Begins the next split. All stages must have been released. first_32: its first 32 pages, or all if fewer.
  __device__ __forceinline__ void open(const attention_args &a, const device_batch &batch,
                                       const td_attention_item &it, uint32_t kv_head, const int32_t *first_32)
  {
    uint32_t warp = threadIdx.x / 32;
    first_pages = first_32;
    kv = a.kv + ((size_t)(kv_head * 2 + warp % 2) * HD << page_shift);
    page_stride = (size_t)a.n_kv_heads * 2 * HD << page_shift;
    pages = batch.page_table + it.page_table_offset + (it.kv_begin >> page_shift);
    n_keys = it.kv_end - it.kv_begin;
    n = (n_keys + S::KEYS - 1) / S::KEYS;
    auto p = stages;
#pragma unroll 1 // unrolled, it would take registers that private KV needs, which spills 300 bytes there
    for (uint32_t i = 0; i < S::STAGES; i++, p.advance())
      copy(i, {p.now.index, p.now.phase ^ 1});
  }

  // Copies number `number` of the split's K and V tiles, if this warp copies it and the split has it. s: with
  // the producer's phase.
  __device__ __forceinline__ void copy(uint32_t number, pipeline_stage s)
  {
    uint32_t lane = threadIdx.x % 32, bytes = HD * 2 << page_shift;
    bool last = number == 2 * n - 1, v = number > 0 && (last || number % 2 == 0);
    if (number >= 2 * n || threadIdx.x / 32 != v)
      return;
    uint32_t tile = last ? n - 1
                    : v  ? number / 2 - 1
                         : (number + 1) / 2,
             first = tile * S::KEYS >> page_shift;
    uint32_t n_pages = (min(S::KEYS, n_keys - tile * S::KEYS) + (1u << page_shift) - 1) >> page_shift;
    const uint32_t in_32 = first % 32;
    if (first == 0)
      page_id = lane << page_shift < n_keys ? first_pages[lane] : 0;
    else if (in_32 == 0)
      page_id = (first + lane) << page_shift < n_keys ? pages[first + lane] : 0;
    int32_t page = __shfl_sync(0xffffffffu, page_id, in_32 + lane);
    stages.acquire(s);
    if (lane == 0)
      barrier_expect(stages.full(s.index), n_pages * bytes);
    __syncwarp();
    if (lane < n_pages)
      copy_bulk(stages.data(s.index) + lane * bytes, kv + (size_t)page * page_stride, bytes,
                stages.full(s.index));
  }

  // Called by a warp that has read the stage.
  __device__ __forceinline__ void release(pipeline_stage s) const
  {
    if (threadIdx.x % 32 == 0)
      stages.release(s.index);
  }

  // Releases a stage that held number `number` of the split, and queues its content of the next round once
  // all warps have released it. A producer's phase in the next round is a consumer's phase in this one.
  __device__ __forceinline__ void release_and_copy(uint32_t number, pipeline_stage s)
  {
    release(s);
    copy(number + S::STAGES, s);
  }

  // Zeroes lines past the end in the last tile of V. Their softmax weight is zero, but 0 * NaN would still be
  // NaN. Called by all threads.
  __device__ __forceinline__ void zero_lines(pipeline_stage s, uint32_t n_lines) const
  {
    constexpr uint32_t CHUNKS = HD / 8;
    for (uint32_t k = n_lines * CHUNKS + threadIdx.x; k < S::KEYS * CHUNKS; k += WARPGROUP_THREADS)
      store_shared_16(stages.data(s.index) + kv_chunk_at(HD, k / CHUNKS, k % CHUNKS) * 2,
                      make_uint4(0, 0, 0, 0));
    fence_shared_writes();
    __syncthreads();
  }
};

// Copies a split's query rows to shared memory. Rows past the last one repeat it.
template <int HD> struct prefix_queries {
  static constexpr uint32_t CHUNKS = HD / 8, EACH = PREFIX_TILE_ROWS * CHUNKS / WARPGROUP_THREADS;
  const bf16 *src[EACH];

  __device__ __forceinline__ static uint32_t row(uint32_t i)
  {
    return (i * WARPGROUP_THREADS + threadIdx.x) / CHUNKS;
  }
  __device__ __forceinline__ static uint32_t chunk(uint32_t i)
  {
    return (i * WARPGROUP_THREADS + threadIdx.x) % CHUNKS;
  }

  // Finds the source addresses; reads only the plan. members: those of the split. Rows are divided by the GQA
  // group's size with a multiplication, which is exact for so few rows and heads.
  __device__ __forceinline__ void find(const attention_args &a, const td_attention_member *members,
                                       const td_attention_item &it, uint32_t kv_head)
  {
    static_assert(PREFIX_TILE_ROWS <= 128 && TD_GQA_GROUP_MAX <= 64, "else the multiplication is not exact");
    uint32_t last = it.n_members * a.gqa_group - 1, per_group = 65536 / a.gqa_group + 1;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
      uint32_t r = min(row(i), last), member = r * per_group >> 16,
               head = kv_head * a.gqa_group + r - member * a.gqa_group;
      src[i] =
          a.qkv + ((size_t)members[member].token * (a.n_heads + 2 * a.n_kv_heads) + head) * HD + chunk(i) * 8;
    }
  }

  __device__ __forceinline__ void copy(uint32_t smem) const
  {
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
      cp_async_16(smem + kv_chunk_at(HD, row(i), chunk(i)) * 2, src[i]);
  }

  // Waits for all copies; called by all threads.
  __device__ __forceinline__ static void await()
  {
    cp_async_wait_all();
    fence_shared_writes();
    __syncthreads();
  }
};

// Query rows of a split that come straight from the linear. A warp rotates all rows of a member, one member
// after the other.
template <int HD> struct tile_rotation {
  static constexpr uint32_t N_WARPS = WARPGROUP_THREADS / 32;
  const decode_rotation &rotation;
  float2 *rotations; // [HD / 2] of the warp, in shared memory

  // Computes the rotations of a member. The first call, for the warp's first member, reads only the plan.
  __device__ __forceinline__ void prepare(const td_attention_member *members, uint32_t m,
                                          const td_attention_item &it) const
  {
    if (m >= it.n_members)
      return;
    int32_t position = (int32_t)members[m].n_keys - 1;
    __syncwarp();
    for (uint32_t i = threadIdx.x % 32; i < HD / 2; i += 32)
      rotations[i] = rotation_of(position, rotation.inv_freq[i], rotation.attn_factor);
    __syncwarp();
  }

  // Rotates all rows into the layout of a tile; the warp's first member has been prepared. Rows past the last
  // are zero.
  __device__ __forceinline__ void rotate(const attention_args &a, const td_attention_member *members,
                                         const td_attention_item &it, uint32_t kv_head, uint32_t smem) const
  {
    constexpr uint32_t LANES = HD / 16, HEADS = 32 / LANES, CHUNKS = HD / 8;
    uint32_t lane = threadIdx.x % 32 % LANES, first = threadIdx.x % 32 / LANES;
    uint32_t chunk[2] = {first_chunk(lane, rotation.halves), second_chunk(lane, HD, rotation.halves)};
    for (uint32_t m = threadIdx.x / 32; m < it.n_members; m += N_WARPS) {
      const bf16 *heads =
          a.qkv + ((size_t)members[m].token * (a.n_heads + 2 * a.n_kv_heads) + kv_head * a.gqa_group) * HD;
      if (m >= N_WARPS)
        prepare(members, m, it);
      for (uint32_t h = first; h < a.gqa_group && first < HEADS; h += HEADS) {
        bf16x8 rotated[2];
        rotate_head<HD>(rotated, heads + h * HD, chunk, rotation.q_norm, rotation.eps,
                        rotations + first_pair(chunk[0], rotation.halves), rotation.halves);
#pragma unroll
        for (int c = 0; c < 2; c++)
          store_shared_16(smem + kv_chunk_at(HD, m * a.gqa_group + h, chunk[c]) * 2, *(uint4 *)&rotated[c]);
      }
    }
    for (uint32_t i = it.n_members * a.gqa_group * CHUNKS + threadIdx.x; i < PREFIX_TILE_ROWS * CHUNKS;
         i += WARPGROUP_THREADS)
      store_shared_16(smem + kv_chunk_at(HD, i / CHUNKS, i % CHUNKS) * 2, make_uint4(0, 0, 0, 0));
  }
};

// The epilogue: writes this thread's two query rows of a split to their partials. IN_TILES: elements are
// stored in the order of a tile's threads (fragment_at), else in their own order.
template <int HD, bool IN_TILES, int KEYS>
__device__ __forceinline__ void store_partials(const consumer<HD, KEYS> &c, unsigned char *partials,
                                               uint32_t n_rows, float scale_log2)
{
  uint32_t r0 = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sum, unit = unit_of_tile_row<HD>(c, h, &sum), per_unit = 1 / unit;
    uint32_t r = r0 + 8 * h;
    if (r >= n_rows)
      continue;
    unsigned char *dst = partial_at<HD>(partials, r);
#pragma unroll
    for (int j = 0; j < HD / 8; j += 4) {
      alignas(16) __half2 pairs[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        pairs[k] = in_units(c.o[4 * (j + k) + 2 * h], c.o[4 * (j + k) + 2 * h + 1], per_unit);
        if constexpr (!IN_TILES)
          put_pair(dst, (j + k) * 8 + 2 * (threadIdx.x % 4), pairs[k]);
      }
      if constexpr (IN_TILES)
        ((uint4 *)dst)[fragment_at(j / 4)] = *(uint4 *)pairs;
    }
    if (threadIdx.x % 4 == 0)
      put_end<HD>(dst, c.m[h] * scale_log2, sum, unit);
  }
}

// The main loop over a split's KV tiles, by all warps. Q*K^T of a KV tile runs beside P*V of the tile before,
// and P*V beside the softmax. P*V of the last tile is left to finish_split.
template <int HD>
__device__ __forceinline__ void attend_split(consumer<HD, prefix_tile<HD>::KEYS> &c, prefix_ring<HD> &ring,
                                             uint32_t q16, const attention_args &a)
{
  using S = prefix_tile<HD>;
  float corr[2];
  c.clear();
  for (uint32_t i = 0; i < ring.n; i++) {
    uint32_t left = ring.n_keys - i * S::KEYS;
    const pipeline_stage k = ring.next_stage();
    pipeline_stage v = k;
    ring.stages.wait_full(k);
    c.multiply_qk(q16, warp_uniform(ring.stages.data(k.index) >> 4));
    if (i > 0) {
      v = ring.next_stage();
      ring.stages.wait_full(v);
      c.multiply_pv(warp_uniform(ring.stages.data(v.index) >> 4));
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    wgmma_fence_operand(c.s);
    ring.release_and_copy(i > 0 ? 2 * i - 1 : 0, k);
    if (left < S::KEYS)
      c.mask_outside(0, 0, left);
    c.online_softmax(a.scale_log2, corr);
    wgmma_fence_operand(c.s);
    if (i > 0) {
      wgmma_wait<0>();
      wgmma_fence_operand(c.o);
      ring.release_and_copy(2 * i, v);
      if (__any_sync(0xffffffffu, corr[0] != 1 || corr[1] != 1)) // the maximum is mostly unchanged
        c.rescale(corr);
    }
    c.pack_weights();
  }
}

template <int HD>
__device__ __forceinline__ void finish_split(consumer<HD, prefix_tile<HD>::KEYS> &c, prefix_ring<HD> &ring)
{
  using S = prefix_tile<HD>;
  const pipeline_stage v = ring.next_stage();
  uint32_t left = ring.n_keys - (ring.n - 1) * S::KEYS;
  ring.stages.wait_full(v);
  if (left < S::KEYS)
    ring.zero_lines(v, left);
  c.multiply_pv(warp_uniform(ring.stages.data(v.index) >> 4));
  wgmma_wait<0>();
  wgmma_fence_operand(c.o);
  ring.release(v);
}

// Computes a prefix split and the splits chained to it (td_attention_item.next). Called by a CTA of four
// warps. smem: ALL_BYTES, aligned to 1024. ROTATES: queries come straight from the linear. rotations: room
// for HD / 2 of them, of the warp.
template <int HD, bool IN_TILES, bool ROTATES>
__device__ __forceinline__ void
attend_prefix_splits(const attention_args &a, const decode_rotation &rotation, const device_batch &batch,
                     const shared_prefixes &shared, const td_attention_item &first,
                     const td_attention_item *items, uint32_t kv_head, uint32_t smem, uint32_t bars,
                     split_prefetch *prefetched, float2 *rotations, decode_start start)
{
  const td_attention_member *members = members_of(shared);
  prefix_ring<HD> ring;
  consumer<HD, prefix_tile<HD>::KEYS> c;
  prefix_queries<HD> queries;
  const tile_rotation<HD> rotated = {rotation, rotations};
  const uint32_t warp = threadIdx.x / 32;
  fence_global_writes(); // pages were written by ordinary stores
  ring.setup(batch, smem + prefix_tile<HD>::BYTES, bars);
  if (threadIdx.x % 32 == 0)
    prefetched->items[0] = first;
  if (first.next > 0)
    copy_item(&prefetched->items[1], &items[first.next]);
  ring.open(a, batch, first, kv_head,
            batch.page_table + first.page_table_offset +
                first.kv_begin / batch.page_tokens); // shared pages are not written any more
  if constexpr (!ROTATES)
    queries.find(a, members + first.member, first, kv_head);
  else
    rotated.prepare(members + first.member, warp, first);
  wait_unless_beside(start);
  if constexpr (ROTATES)
    rotated.rotate(a, members + first.member, first, kv_head, smem);
  else
    queries.copy(smem);
  for (uint32_t at = 0;;) {
    prefix_queries<HD>::await();
    const td_attention_item &split = prefetched->items[at];
    uint32_t next = at == 2 ? 0 : at + 1;
    bool more = split.next > 0;
    if (more)
      prefetch_split(prefetched, next, items, members, batch);
    attend_split(c, ring, warp_uniform(smem >> 4), a);
    if (more) {
      await_copies();
      if constexpr (!ROTATES)
        queries.find(a, prefetched->members, prefetched->items[next], kv_head);
      __syncthreads(); // no warp uses the query rows any more
      if constexpr (!ROTATES)
        queries.copy(smem);
    }
    finish_split(c, ring);
    if (more)
      ring.open(a, batch, prefetched->items[next], kv_head, prefetched->pages);
    store_partials<HD, IN_TILES>(c, partials_of<HD>(a, shared, split, kv_head), split.n_members * a.gqa_group,
                                 a.scale_log2);
    if constexpr (ROTATES)
      if (more) { // not earlier: it would need registers besides those of the split's sums
        rotated.prepare(prefetched->members, warp, prefetched->items[next]);
        rotated.rotate(a, prefetched->members, prefetched->items[next], kv_head, smem);
      }
    tell_done(a, batch, shared, split, kv_head);
    if (!more)
      return;
    at = next;
  }
}
#endif
