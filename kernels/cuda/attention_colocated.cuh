// Decodes on the SMs of prefill tiles. One more warpgroup of prefill's CTA computes them, with its own
// producer warp.
//
// A decode has few query rows, and prefill has nearly all registers, so the operands of wgmma are exchanged.
// Keys (then elements of V) are wgmma's 64 rows, and query rows are its 8 columns. A thread then needs only 4
// scores and HD / 16 sums, and K and V are read from shared memory once, in the page's layout. Few
// instructions compete with those of prefill's softmax. Memory streams while the tensor cores work.
//
// Warpgroups take work items by tickets, in the order of the work list. A warpgroup stops when its CTA's
// prefill is done. The CTAs of a second kernel (attention_colocated.cu) do what is left, and what SMs without
// prefill can do meanwhile. They run the same code, so a result does not depend on who had which ticket.
// Source: POD-Attention (Kamath et al. 2025, section 4: CTAs of both kinds on one SM, and tickets). Here
// warpgroups of one CTA replace separate CTAs, because Hopper's wgmma needs the registers of a whole SM.
#pragma once

#include "kernels/cuda/attention_epilogue.cuh"
#include "kernels/cuda/attention_ring.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ring.cuh"

template <int HD> struct colocated_shape {
  // Keys of a KV tile. Prefill of heads of 128 elements leaves 60 KB for K and V. With 64 keys, wgmma's
  // number of rows, too few stages would fit to hide memory latency.
  static constexpr int KEYS = 48;
  static constexpr int COPY_KEYS = 16; // a page has at least this many tokens
  static constexpr int ROWS = 8, WARPS = WARPGROUP_THREADS / 32;
  // A V stage is in use for one tile longer than a K stage.
  static constexpr int K_STAGES = HD == 128 ? 2 : 4, V_STAGES = HD == 128 ? 3 : 6; // 60 KB
  static constexpr int ITEM_STAGES = 2;
  static constexpr int STAGE_BYTES = KEYS * HD * 2, RING_BYTES = (K_STAGES + V_STAGES) * STAGE_BYTES;
  // Query rows and the softmax weights of two KV tiles. An item's epilogue puts its sums there.
  static constexpr int QUERY_BYTES = ROWS * HD * 2, WEIGHT_BYTES = ROWS * 128;
  static constexpr int OPERAND_BYTES = QUERY_BYTES + 2 * WEIGHT_BYTES, SUM_BYTES = ROWS * (HD + 4) * 4;
  static constexpr int BYTES = RING_BYTES + (OPERAND_BYTES > SUM_BYTES ? OPERAND_BYTES : SUM_BYTES);
  static constexpr uint32_t BARRIER = 5; // a named barrier; prefill's warpgroups use the lower ids
  static_assert(HD % 64 == 0, "elements of V are wgmma's rows");
  static_assert(ROWS * HD / 8 <= WARPGROUP_THREADS, "copy_queries: a thread copies 16 bytes at most");
  static_assert(STAGE_BYTES % 1024 == 0 && RING_BYTES % 1024 == 0,
                "the order of operands repeats after 1024");
};

// The decodes of a prefill launch and of the launch after it, which does the rest. Both take tickets from one
// counter.
struct colocated_range {
  const td_attention_item *items;
  uint32_t first;                   // index of the first decode item
  uint32_t *tickets, *next_tickets; // next_tickets: the counter of the next such launches, which this prefill
                                    // launch sets to 0
};
enum { TICKET_COUNTERS = 2 }; // counters of these launches and of the next ones, in alternation

static inline colocated_range colocated_range_of(const attention_group *g, uint32_t first)
{
  return {g->device_items, first, g->tickets + g->n_colocated % TICKET_COUNTERS,
          g->tickets + (g->n_colocated + 1) % TICKET_COUNTERS};
}

#ifdef TD_HAS_WGMMA
// Shared memory of a CTA's colocated decodes.
template <int HD> struct colocated_state {
  using S = colocated_shape<HD>;
  uint64_t k_bars[2 * S::K_STAGES], v_bars[2 * S::V_STAGES], item_bars[2 * S::ITEM_STAGES];
  uint32_t prefill_ended; // number of consumer warpgroups that have finished prefill
  uint32_t raised[2];     // numbers of the last even and the last odd KV tile that had to raise a reference
  uint32_t ticket[S::ITEM_STAGES];
  __align__(16) td_attention_item items[S::ITEM_STAGES];
  float2 top[S::WARPS][4], sum[S::WARPS][4]; // one for each warp's keys; an element has two query rows

  // One thread calls it, before publish_barriers.
  __device__ __forceinline__ void clear() { prefill_ended = raised[0] = raised[1] = 0; }
};

template <int HD> struct colocated_rings {
  using S = colocated_shape<HD>;
  ring<S::K_STAGES, S::STAGE_BYTES, S::WARPS> k;
  ring<S::V_STAGES, S::STAGE_BYTES, S::WARPS> v;
  ring<S::ITEM_STAGES, 0, WARPGROUP_THREADS> items;

  __device__ __forceinline__ colocated_rings(unsigned char *smem, const colocated_state<HD> &state)
  {
    uint32_t at = shared_address(smem);
    k.place(at, shared_address(state.k_bars));
    v.place(at + S::K_STAGES * S::STAGE_BYTES, shared_address(state.v_bars));
    items.place(0, shared_address(state.item_bars));
  }
  // One thread calls it, before publish_barriers.
  __device__ __forceinline__ void init_barriers() const
  {
    k.init(0, S::K_STAGES);
    v.init(0, S::V_STAGES);
    items.init(0, S::ITEM_STAGES);
  }
};

constexpr uint32_t NO_TICKET = UINT32_MAX;

// The producer warp takes the next work item. Returns false if none is left or prefill is done. Lane 0 writes
// all that it releases, because racecheck does not follow other lanes' writes past an mbarrier.
template <int HD>
__device__ __forceinline__ bool take_ticket(const attention_args &a, const colocated_range &range,
                                            uint32_t n_wide, colocated_state<HD> &state,
                                            const decltype(colocated_rings<HD>::items) &items, uint32_t stage)
{
  using words = uint4[sizeof(td_attention_item) / sizeof(uint4)];
  static_assert(sizeof(words) == sizeof(td_attention_item), "an item is copied in words of 16 bytes");
  uint32_t ticket = NO_TICKET;
  if (threadIdx.x % 32 == 0) {
    if (*(volatile uint32_t *)&state.prefill_ended < TILE_WARPGROUPS)
      ticket = atomicAdd(range.tickets, 1);
    uint32_t at = range.first + ticket / a.n_kv_heads;
    if (ticket != NO_TICKET && at < n_wide) {
      const uint4 *from = (const uint4 *)(range.items + at);
#pragma unroll
      for (size_t i = 0; i < sizeof(words) / sizeof(uint4); i++)
        ((uint4 *)&state.items[stage])[i] = __ldg(from + i);
    } else {
      ticket = NO_TICKET;
    }
    state.ticket[stage] = ticket;
    items.commit(stage);
  }
  __syncwarp(); // the warp reads the item, too
  return __shfl_sync(0xffffffffu, ticket, 0) != NO_TICKET;
}

// The first key of an item that is copied. With a sliding window, whole copies that no query row sees are
// skipped.
template <int HD>
__device__ __forceinline__ uint32_t first_key(const attention_args &a, const td_attention_item &it)
{
  constexpr uint32_t ALIGN = colocated_shape<HD>::COPY_KEYS;
  uint32_t seen = it.position + 1; // keys that the item's first token sees
  return a.window > 0 && seen > a.window ? max(it.kv_begin, (seen - a.window) / ALIGN * ALIGN) : it.kv_begin;
}

// The producer: takes items and copies their keys and values.
template <int HD>
__device__ __forceinline__ void produce_decodes(const attention_args &a, const device_batch &batch,
                                                const colocated_range &range,
                                                const colocated_rings<HD> &rings, colocated_state<HD> &state)
{
  using S = colocated_shape<HD>;
  constexpr uint32_t COPIES = S::KEYS / S::COPY_KEYS, COPY_BYTES = S::COPY_KEYS * HD * 2,
                     LOOK_UP_TILES = 32 / COPIES; // tiles whose pages one look-up covers, a copy's page in
                                                  // each lane
  auto k = rings.k.as_producer();
  auto v = rings.v.as_producer();
  auto items = rings.items.as_producer();
  uint32_t lane = threadIdx.x % 32, n_wide = batch.counts[COUNT_WIDE_ITEMS],
           page_shift = log2_of(batch.page_tokens);
  size_t half = (size_t)batch.page_tokens * HD, page_stride = half * 2 * a.n_kv_heads;
  uint64_t policy = read_once_policy();
  fence_global_writes(); // pages were written with ordinary stores
  for (bool more = true; more;) {
    uint32_t stage = items.now.index;
    items.acquire();
    more = take_ticket(a, range, n_wide, state, items, stage);
    items.advance();
    if (!more)
      break;
    const td_attention_item &it = state.items[stage];
    const bf16 *kv = a.kv + state.ticket[stage] % a.n_kv_heads * 2 * half;
    const int32_t *pages = batch.page_table + it.page_table_offset;
    uint32_t token = first_key<HD>(a, it), kv_end = it.kv_end;
    int32_t page_id = 0;
    const bf16 *v_before = nullptr; // V of the tile before, which is needed after this tile's K
    uint32_t n_before = 0;
    auto copy = [&](auto &r, const bf16 *from, uint32_t n) {
      r.acquire();
      if (lane == 0)
        r.expect(n * COPY_BYTES);
      __syncwarp();
      if (lane < n)
        copy_bulk_once(r.data() + lane * COPY_BYTES, from, COPY_BYTES, r.full(), policy);
      r.advance();
    };
    for (uint32_t i = 0; token < kv_end; i++, token += S::KEYS) {
      uint32_t mine = token + lane * S::COPY_KEYS;
      if (i % LOOK_UP_TILES == 0)
        page_id = mine < kv_end ? pages[mine >> page_shift] : 0;
      int32_t page = __shfl_sync(0xffffffffu, page_id, i % LOOK_UP_TILES * COPIES + lane % COPIES);
      const bf16 *src = kv + (size_t)page * page_stride + (size_t)(mine & (batch.page_tokens - 1)) * HD;
      uint32_t n = min(COPIES, (kv_end - token + S::COPY_KEYS - 1) / S::COPY_KEYS);
      copy(k, src, n);
      if (n_before > 0)
        copy(v, v_before, n_before);
      v_before = src + half;
      n_before = n;
    }
    copy(v, v_before, n_before);
  }
}

// A softmax weight is 2^(score - reference) of its row. The reference is the row's maximum at the time when
// it was last raised. Later scores may exceed it by up to GROWTH_MAX.
constexpr float GROWTH_MAX = 16;
constexpr float NOTHING_SEEN = -1e30f; // a reference that is finite, so that masked keys have weight 0

// The warpgroup's sums of an item. With t = lane % 4 and g = lane / 4, a thread has query rows 2t and 2t + 1,
// and of every 64 output elements numbers 16 * warp + g and 16 * warp + g + 8. m: the references.
template <int HD> struct colocated_sums {
  float o[HD / 64][4], m[2], l[2];
};

template <int HD> struct colocated_consumer {
  using S = colocated_shape<HD>;
  using T = kv_tile_shape<HD>;
  const attention_args &a;
  const colocated_rings<HD> &rings;
  colocated_state<HD> &state;
  unsigned char *smem; // query rows and weights; in the epilogue, sums

  __device__ __forceinline__ static uint32_t warp() { return threadIdx.x % WARPGROUP_THREADS / 32; }
  __device__ __forceinline__ static uint32_t row_pair() { return threadIdx.x % 4; }
  __device__ __forceinline__ static uint32_t row_of_8() { return threadIdx.x % 32 / 4; }
  __device__ __forceinline__ static void sync() { named_sync(S::BARRIER, WARPGROUP_THREADS); }

  // Called by each warp when it has read the stage.
  template <class RING> __device__ __forceinline__ static void release(const RING &r, uint32_t index)
  {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
      r.release(index);
  }
  template <class RING> __device__ __forceinline__ static void release(RING &r)
  {
    release(r, r.now.index);
    r.advance();
  }

  // Rows past the item's end repeat its last row.
  __device__ __forceinline__ void copy_queries(const td_attention_item &it, uint32_t kv_head) const
  {
    constexpr uint32_t CHUNKS = HD / 8;
    uint32_t i = threadIdx.x % WARPGROUP_THREADS;
    if (i >= S::ROWS * CHUNKS)
      return;
    uint32_t r = i / CHUNKS, chunk = i % CHUNKS, p = min(r, it.n_tokens * a.gqa_group - 1);
    const bf16 *src = a.qkv + (size_t)(it.query + p / a.gqa_group) * ((a.n_heads + 2 * a.n_kv_heads) * HD) +
                      (kv_head * a.gqa_group + p % a.gqa_group) * HD + chunk * 8;
    *(uint4 *)(smem + kv_chunk_at(HD, r, chunk) * 2) = *(const uint4 *)src;
  }

  // Weights of KV tile number n. Two buffers, because two warps may be at neighbouring tiles.
  __device__ __forceinline__ uint32_t weights_of(uint32_t n) const
  {
    return shared_address(smem) + S::QUERY_BYTES + n % 2 * S::WEIGHT_BYTES;
  }

  // Queues K*Q^T of a tile. With g = lane / 4 and t = lane % 4, s[0..1] becomes the scores of key 16 * warp +
  // g with rows 2t and 2t + 1, and s[2..3] those of key 16 * warp + g + 8. The last warp's keys are past the
  // tile: they are lines of the next stage, which may still be in flight, and are masked.
  __device__ __forceinline__ void multiply_qk(float (&s)[4], uint32_t k_address) const
  {
    uint32_t k16 = warp_uniform(operand_address(k_address)),
             q16 = warp_uniform(operand_address(shared_address(smem)));
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < HD / 16; c++)
      wgmma_8<false>(s, wgmma_descriptor(k16 + T::k_step(c) / 16, 16, T::GROUP_BYTES, T::ATOM_LINE_BYTES),
                     wgmma_descriptor(q16 + T::k_step(c) / 16, 16, T::GROUP_BYTES, T::ATOM_LINE_BYTES),
                     c > 0);
    wgmma_commit();
  }

  __device__ __forceinline__ void multiply_pv(colocated_sums<HD> &sums, uint32_t v_address,
                                              uint32_t weights) const
  {
    uint32_t v16 = warp_uniform(operand_address(v_address)), p16 = warp_uniform(operand_address(weights));
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < S::KEYS / 16; c++)
#pragma unroll
      for (int h = 0; h < HD / 64; h++)
        wgmma_8<true>(sums.o[h],
                      wgmma_descriptor(v16 + (c * 2 * T::GROUP_BYTES + h * T::ATOM_BYTES) / 16, T::ATOM_BYTES,
                                       T::GROUP_BYTES, T::ATOM_LINE_BYTES),
                      wgmma_descriptor(p16 + c * 2, 16, S::WEIGHT_BYTES), true);
    wgmma_commit();
  }

  // Waits for all wgmmas queued so far.
  __device__ __forceinline__ static void wait_wgmmas(colocated_sums<HD> &sums, float (&s)[4])
  {
    wgmma_wait<0>();
    wgmma_fence_operand(s);
#pragma unroll
    for (int h = 0; h < HD / 64; h++)
      wgmma_fence_operand(sums.o[h]);
  }

  // Turns scores into weights and writes them to shared memory as an operand: [rows, keys]. total: sums of
  // this thread's weights for its two rows. Returns true if a reference must be raised.
  __device__ __forceinline__ bool store_weights(const float (&s)[4], const colocated_sums<HD> &sums,
                                                uint32_t weights, float (&total)[2]) const
  {
    float w[4], top = -INFINITY;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      w[e] = fmaf(s[e], a.scale_log2, -sums.m[e % 2]);
      top = fmaxf(top, w[e]);
      w[e] = exp2_fast(w[e]);
    }
    total[0] = w[0] + w[2];
    total[1] = w[1] + w[3];
    uint32_t row = threadIdx.x % 8, chunk = 2 * warp() + threadIdx.x / 8 % 2; // for this lane's address
    stmatrix_x2_trans(weights + row * 128 + (chunk ^ row) * 16, pack2(w[0], w[1]), pack2(w[2], w[3]));
    return top > GROWTH_MAX;
  }

  // Raises the references to the maxima of all keys so far, including those of scores s.
  __device__ __forceinline__ void raise_references(colocated_sums<HD> &sums, const float (&s)[4]) const
  {
    float top[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      top[h] = fmaxf(s[h], s[h + 2]);
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2)
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], lanes));
    }
    if (row_of_8() == 0)
      state.top[warp()][row_pair()] = make_float2(top[0], top[1]);
    sync();
#pragma unroll
    for (int w = 0; w < S::WARPS; w++) {
      float2 other = state.top[w][row_pair()];
      top[0] = fmaxf(top[0], other.x);
      top[1] = fmaxf(top[1], other.y);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float before = sums.m[h];
      sums.m[h] = fmaxf(before, top[h] * a.scale_log2);
      float corr = exp2_fast(before - sums.m[h]);
      sums.l[h] *= corr;
#pragma unroll
      for (int i = 0; i < HD / 64; i++) {
        sums.o[i][h] *= corr;
        sums.o[i][h + 2] *= corr;
      }
    }
  }

  // Zeroes lines past the item's end. Their softmax weight is zero, but 0 * NaN would still be NaN. The lanes
  // that release the stage do it, or racecheck would complain.
  __device__ __forceinline__ static void zero_lines(uint32_t v_address, uint32_t n_lines)
  {
    constexpr uint32_t CHUNKS = HD / 8;
    if (threadIdx.x % 32 == 0)
      for (uint32_t i = n_lines * CHUNKS + warp(); i < S::KEYS * CHUNKS; i += S::WARPS)
        store_shared_16(v_address + kv_chunk_at(HD, i / CHUNKS, i % CHUNKS) * 2, make_uint4(0, 0, 0, 0));
  }

  // Which keys the query rows of an item see.
  struct visible_keys {
    int32_t pos[2], first_pos, from_all; // all rows see keys in [from_all, first_pos]
    uint32_t window;
    __device__ __forceinline__ void mask(float (&s)[4], uint32_t token, uint32_t n_lines) const
    {
      if (16 * (warp() + 1) <= n_lines && (int32_t)token >= from_all &&
          (int32_t)(token + S::KEYS) <= first_pos + 1)
        return;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        uint32_t line = 16 * warp() + row_of_8() + e / 2 * 8;
        int32_t key = (int32_t)(token + line);
        if (line >= n_lines || key > pos[e % 2] || (window > 0 && key <= pos[e % 2] - (int32_t)window))
          s[e] = -INFINITY;
      }
    }
  };
  __device__ __forceinline__ visible_keys visible_keys_of(const td_attention_item &it) const
  {
    uint32_t last = it.n_tokens * a.gqa_group - 1;
    int32_t first_pos = (int32_t)it.position;
    return {{first_pos + (int32_t)(min(2 * row_pair(), last) / a.gqa_group),
             first_pos + (int32_t)(min(2 * row_pair() + 1, last) / a.gqa_group)},
            first_pos,
            a.window > 0 ? first_pos + (int32_t)(last / a.gqa_group) - (int32_t)a.window + 1 : 0,
            a.window};
  }

  // Online softmax of the CTA's KV tile number n, counted from 1. end_softmax follows begin_softmax when all
  // wgmmas queued before are done. Weights are computed with the references of earlier tiles, and kept unless
  // one is too large. So the warps need only one barrier a tile, which P*V needs anyway.
  __device__ __forceinline__ void begin_softmax(const colocated_sums<HD> &sums, const float (&s)[4],
                                                float (&total)[2], uint32_t n) const
  {
    if (__any_sync(0xffffffffu, store_weights(s, sums, weights_of(n), total)))
      state.raised[n % 2] = n;
  }
  __device__ __forceinline__ void end_softmax(colocated_sums<HD> &sums, const float (&s)[4],
                                              float (&total)[2], uint32_t n) const
  {
    fence_shared_writes();
    sync();
    if (*(volatile uint32_t *)&state.raised[n % 2] == n) { // true mostly in an item's first tile
      raise_references(sums, s);
      store_weights(s, sums, weights_of(n), total);
      fence_shared_writes();
      sync();
    }
    sums.l[0] += total[0];
    sums.l[1] += total[1];
  }

  // The main loop over an item's KV tiles; n counts the tiles of the CTA. K*Q^T of the next tile is queued
  // before a tile's softmax, because it may have to wait for prefill's wgmmas.
  template <class K, class V>
  __device__ __forceinline__ void attend(colocated_sums<HD> &sums, const td_attention_item &it, K &k, V &v,
                                         uint32_t &n) const
  {
    const visible_keys keys = visible_keys_of(it);
    const uint32_t begin = first_key<HD>(a, it), kv_end = it.kv_end;
    uint32_t token = begin, before = 0;
    float s[4], next[4], total[2];
    auto end_wgmmas = [&](float(&of_keys)[4]) {
      wait_wgmmas(sums, of_keys);
      if (token > begin)
        release(v, before); // the V stage of the tile before
    };
    k.wait_full();
    multiply_qk(next, k.data());
    wait_wgmmas(sums, next);
    release(k);
    for (; token + S::KEYS < kv_end; token += S::KEYS) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        s[e] = next[e];
      k.wait_full();
      multiply_qk(next, k.data());
      keys.mask(s, token, S::KEYS);
      begin_softmax(sums, s, total, ++n);
      end_wgmmas(next);
      release(k);
      v.wait_full();
      end_softmax(sums, s, total, n);
      multiply_pv(sums, v.data(), weights_of(n));
      before = v.now.index;
      v.advance();
    }
    uint32_t n_lines = kv_end - token;
    keys.mask(next, token, n_lines);
    begin_softmax(sums, next, total, ++n);
    end_wgmmas(s);
    v.wait_full();
    zero_lines(v.data(), n_lines);
    end_softmax(sums, next, total, n);
    multiply_pv(sums, v.data(), weights_of(n));
    wait_wgmmas(sums, s);
    release(v);
  }

  // The epilogue: writes the sums to the output, or to a partial.
  __device__ __forceinline__ void store(colocated_sums<HD> &sums, const td_attention_item &it,
                                        uint32_t kv_head) const
  {
    constexpr uint32_t STRIDE = HD + 4;
    uint32_t t = row_pair(), n_rows = it.n_tokens * a.gqa_group;
    float *rows = (float *)smem;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2)
        sums.l[h] += __shfl_xor_sync(0xffffffffu, sums.l[h], lanes);
    if (row_of_8() == 0)
      state.sum[warp()][t] = make_float2(sums.l[0], sums.l[1]);
    sync(); // also: no warp reads query rows and weights any more
#pragma unroll
    for (int h = 0; h < HD / 64; h++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        rows[(2 * t + e % 2) * STRIDE + h * 64 + 16 * warp() + row_of_8() + e / 2 * 8] = sums.o[h][e];
    if (warp() == 0 && row_of_8() == 0) {
      float2 all = {0, 0};
#pragma unroll
      for (int w = 0; w < S::WARPS; w++) {
        all.x += state.sum[w][t].x;
        all.y += state.sum[w][t].y;
      }
      auto m = [](float of) { return of == NOTHING_SEEN ? -INFINITY : of; };
      *(float2 *)(rows + 2 * t * STRIDE + HD) = make_float2(m(sums.m[0]), all.x);
      *(float2 *)(rows + (2 * t + 1) * STRIDE + HD) = make_float2(m(sums.m[1]), all.y);
    }
    sync();
    const kv_split mine = {a.partials + it.first_partial * split_stride<HD>(a) +
                               kv_head * TD_DECODE_ROWS * split_row<HD>::FLOATS,
                           split_stride<HD>(a), it.partial - it.first_partial, it.n_partials};
    for (uint32_t p = warp(); p < n_rows; p += S::WARPS) {
      row_sum<HD / 32> sum[1];
      sum[0].m = rows[p * STRIDE + HD];
      sum[0].l = rows[p * STRIDE + HD + 1];
      load_elements<HD / 32>(sum[0].o, rows + p * STRIDE);
      if (it.n_partials > 1 && !reduce_all_splits<HD>(sum, mine, p))
        continue;
      store_output(output_of(a, it, kv_head, p, HD) + threadIdx.x % 32 * (HD / 32), sum[0]);
    }
  }

  __device__ __forceinline__ void run() const
  {
    auto k = rings.k;
    auto v = rings.v;
    auto items = rings.items;
    uint32_t n_tiles = 0;
    for (;;) {
      items.wait_full();
      uint32_t stage = items.now.index, ticket = state.ticket[stage], kv_head = ticket % a.n_kv_heads;
      if (ticket == NO_TICKET)
        return;
      const td_attention_item &it = state.items[stage];
      copy_queries(it, kv_head);
      fence_shared_writes();
      sync();
      colocated_sums<HD> sums = {{}, {NOTHING_SEEN, NOTHING_SEEN}, {0, 0}};
      attend(sums, it, k, v, n_tiles);
      store(sums, it, kv_head);
      sync();               // all sums were read
      items.release(stage); // by every thread: each has read the item
      items.advance();
    }
  }
};
#endif
