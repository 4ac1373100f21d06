// Decode attention on Hopper by a plan (kernels/attention/plan.h): one block per SM goes through its tasks.
//
// A task of at most 16 query rows is bound by bytes. Eight warps go through its pieces, each with its own ring of pages; long pieces they
// share, slice by slice of 16 keys, short ones they take in turn, because a piece's begin and end are waiting for memory. A warp's
// copies run ahead over the ends of pieces and tasks. A task of more query rows (a prefix that many rows share) is a tile for the tensor cores: one warp copies tiles of pages, two warpgroups of 64
// query rows take turns, as attention_prefill.cu does for prompts. Both write partials (m, l, O) where a row has more than one piece;
// who completes a row and head merges them, in the order of keys.
// Source: PersistentKV, PAT (see kernels/attention/README.md); FlashAttention-3 for the tiles.
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_tile.cuh"

template <int HD> struct unified_shape {
  static constexpr int SLICE_BYTES = SLICE_KEYS * HD * 2; // of K, or of V
  static constexpr int DEPTH = HD == 64 ? 6 : HD == 96 ? 4 : 3;
  static constexpr int RING_BYTES = DEPTH * 2 * SLICE_BYTES;
  static constexpr int SUMS_BYTES = UNIFIED_WARPS * SUM_ROWS * (HD + 2) * 4;
  static constexpr int Q_BYTES = TILE_ROWS * HD * 2;
  static constexpr int SMALL_BYTES = UNIFIED_WARPS * RING_BYTES + SUMS_BYTES;
  static constexpr int TILE_BYTES = 2 * Q_BYTES + 2 * TILE_STAGES * key_tile<HD>::TILE_BYTES;
  static constexpr int SMEM_BYTES = 1024 + (SMALL_BYTES > TILE_BYTES ? SMALL_BYTES : TILE_BYTES); // and room to align
};

#ifdef TD_HAS_WGMMA
// ---- tasks bound by bytes ----

// What a warp copies, ahead of what it computes: its slices of each piece, piece after piece.
template <int HD> struct slice_copies {
  using S = unified_shape<HD>;
  const bf16 *kv;
  const int32_t *page_table;
  size_t page_stride;
  uint32_t page_shift, smem, bars; // log2 of a page's tokens
  uint32_t t_end, n;   // slices copied so far, of all pieces
  uint32_t short_keys; // pieces of at most so many are one warp's, by turns
  piece_at now, next;
  uint32_t first_page, next_page; // of their tasks
  const bf16 *src;
  uint32_t i;                  // slices of this piece
  int32_t pages_now, pages_next; // lane l: page of slice l of 32
  uint64_t policy;               // of copies

  __device__ __forceinline__ bool is_short(const piece_at &p) const { return p.end - p.begin <= short_keys; }

  // Slice `slice` of this warp; at or past the piece's end there is none.
  __device__ __forceinline__ uint32_t key_of(const piece_at &p, uint32_t slice) const
  {
    uint32_t warp = (threadIdx.x - WG) / 32;
    if (is_short(p))
      return p.number % UNIFIED_WARPS == warp ? p.begin + slice * SLICE_KEYS : p.end;
    return p.begin + (warp + slice * UNIFIED_WARPS) * SLICE_KEYS;
  }

  __device__ __forceinline__ int32_t look_up(const piece_at &p, uint32_t first_page, uint32_t slice0) const
  {
    if (p.t == t_end)
      return 0;
    uint32_t key = key_of(p, slice0 + threadIdx.x % 32);
    return key < p.end ? page_table[first_page + (key >> page_shift)] : 0;
  }

  __device__ __forceinline__ void find_next(const block_plan &bp)
  {
    next = piece_after(bp, now, t_end);
    next_page = next.t != t_end ? bp.task(next.t).first_page : 0;
    pages_next = look_up(next, next_page, 0);
  }

  __device__ __forceinline__ void begin(const block_plan &bp, uint32_t t_begin, uint32_t t_end_)
  {
    uint32_t keys = 0;
    for (uint32_t t = t_begin; t < t_end_; t++) {
      const td_attention_task &k = bp.task(t);
      keys += (k.end_head - k.begin_head) * k.n_keys + k.end_key - k.begin_key;
    }
    bool fixed = bp.h->invariant_keys > 0; // else how a piece is summed would depend on what else the block has
    short_keys = fixed ? (uint32_t)SHORT_KEYS : max((uint32_t)SHORT_KEYS, keys / (UNIFIED_WARPS * PIECES_EACH));
    t_end = t_end_;
    now = first_piece(bp, t_begin);
    first_page = bp.task(t_begin).first_page;
    pages_now = look_up(now, first_page, 0);
    find_next(bp);
    i = 0;
  }

  // To the next slice that is there; false: none is left.
  __device__ __forceinline__ bool find(const block_plan &bp)
  {
    while (now.t != t_end && key_of(now, i) >= now.end) {
      now = next;
      first_page = next_page;
      pages_now = pages_next;
      i = 0;
      if (now.t != t_end)
        find_next(bp);
    }
    return now.t != t_end;
  }

  // Whether the slice may hold what this step writes: the last key of a row's own span.
  __device__ __forceinline__ bool is_new(const block_plan &bp) const
  {
    const td_attention_task &k = bp.task(now.t);
    return k.n_members == 1 && key_of(now, i) + SLICE_KEYS >= k.n_keys;
  }

  // Finds the next slice and where it lies; false: none is left.
  __device__ __forceinline__ bool prepare(const block_plan &bp)
  {
    if (!find(bp))
      return false;
    if (i > 0 && i % 32 == 0)
      pages_now = look_up(now, first_page, i);
    int32_t page = __shfl_sync(0xffffffffu, pages_now, i % 32);
    uint32_t line = key_of(now, i) & ((1u << page_shift) - 1), half = HD << page_shift;
    src = kv + (size_t)page * page_stride + now.head * 2 * half + threadIdx.x % 2 * half + line * HD; // lane 0: K, 1: V
    i++;
    return true;
  }

  __device__ __forceinline__ void copy()
  {
    uint32_t lane = threadIdx.x % 32, stage = n % S::DEPTH;
    if (lane == 0)
      barrier_expect(bars + stage * 8, 2 * S::SLICE_BYTES);
    if (lane < 2)
      copy_bulk_once(smem + (stage * 2 + lane) * S::SLICE_BYTES, src, S::SLICE_BYTES, bars + stage * 8, policy);
    n++;
  }
};

// Lines at or past n_lines: not NaN, because their weight of zero would not remove that.
template <int HD> __device__ __forceinline__ void zero_slice(uint32_t smem_v, uint32_t n_lines)
{
  for (uint32_t i = n_lines * (HD / 8) + threadIdx.x % 32; i < SLICE_KEYS * (HD / 8); i += 32)
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(page_lines<HD>::at(smem_v, i / (HD / 8), i % (HD / 8))), "r"(0)
                 : "memory");
  fence_shared_writes(); // the next copy goes there too
  __syncwarp();
}

// A small task's query rows, as mma.m16n8k16 has them; rows past the last repeat it and are dropped.
template <int HD>
__device__ __forceinline__ void load_small_queries(uint32_t q[HD / 16][4], const attention_args &a, const block_plan &bp,
                                                   const td_attention_task &k, uint32_t head)
{
  uint32_t lane = threadIdx.x % 32, last = k.n_members * a.group - 1, stride = (a.n_heads + 2 * a.n_kv_heads) * HD;
  const bf16 *src[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t p = min(lane / 4 + 8 * h, last);
    src[h] = a.qkv + (size_t)bp.members[k.first_member + p / a.group].token * stride + (head * a.group + p % a.group) * HD;
  }
#pragma unroll
  for (int c = 0; c < HD / 16; c++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      q[c][e] = *(const uint32_t *)(src[e % 2] + c * 16 + (e / 2) * 8 + 2 * (lane % 4));
}

// The unit of a row that four neighbouring lanes have; all lanes of a warp.
template <int N> __device__ __forceinline__ float unit_of_row(const float (&o)[N][4], int h)
{
  float top = 0;
#pragma unroll
  for (int d = 0; d < N; d++)
    top = fmaxf(top, fmaxf(fabsf(o[d][2 * h]), fabsf(o[d][2 * h + 1])));
  top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
  return unit_of(fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)));
}

// Adds m, l and o of this thread's row h, in memory or (term null) another's registers, to its sum: as it would be in memory.
template <int HD>
__device__ __forceinline__ void fold_row(warp_state<HD> &sum, int h, const unsigned char *term, const warp_state<HD> &other)
{
  const partial_end end = term ? end_of<HD>(term) : partial_end{other.m[h], other.l[h], unit_of_row(other.o, h)};
  float f, w, per_unit = 1 / end.unit;
  fold_factors(&sum.m[h], end.m, &f, &w);
  sum.l[h] = fold(sum.l[h], f, end.l, w);
  w = __fmul_rn(w, end.unit);
#pragma unroll
  for (int d = 0; d < HD / 8; d++) {
    float2 v = term ? pair_of(term, d * 8 + 2 * (threadIdx.x % 4)) : __half22float2(in_units(other.o[d][2 * h], other.o[d][2 * h + 1], per_unit));
    sum.o[d][2 * h] = fold(sum.o[d][2 * h], f, v.x, w);
    sum.o[d][2 * h + 1] = fold(sum.o[d][2 * h + 1], f, v.y, w);
  }
}

// Of a row's own span, all of a head, when all else of the row is there: the sum of that, in its order, and st. So the end of most
// rows that share a prefix needs no partial, no count and no waiting for either.
template <int HD>
__device__ __forceinline__ void merge_at_hand(warp_state<HD> &st, const unified_args &u, const block_plan &bp, const td_attention_task &k,
                                              const piece_at &p)
{
  const td_attention_member mem = bp.members[k.first_member];
  uint32_t row = threadIdx.x % 32 / 4, last = u.a.group - 1;
  warp_state<HD> sum;
  clear(sum);
  for (uint32_t i = 0; i < mem.n_sources; i++) {
    partial_run run = partials_of(bp.spans, bp.tasks, bp.sources[mem.first_source + i], k.first_member, p.head);
    for (uint32_t j = 0; j < run.n; j++) {
      size_t first = (size_t)(run.first + j * run.step) * u.a.group;
      fold_row<HD>(sum, 0, partial_at<HD>(u.partials, first + min(row, last)), st);
      if (last >= 8)
        fold_row<HD>(sum, 1, partial_at<HD>(u.partials, first + min(row + 8, last)), st);
    }
  }
  fold_row<HD>(sum, 0, nullptr, st);
  if (last >= 8)
    fold_row<HD>(sum, 1, nullptr, st);
  st = sum;
  if (threadIdx.x % 32 == 0)
    u.arrived[k.first_member * u.a.n_kv_heads + p.head] = 0;
}

// Whether a piece is the last that its row and head wait for, and all that the row's own span has of the head.
__device__ __forceinline__ bool is_last(const unified_args &u, const block_plan &bp, const td_attention_task &k, const piece_at &p)
{
  if (!k.shared || k.n_members > 1 || p.end - p.begin != k.n_keys)
    return false;
  if (p.t < bp.spans[bp.h->n_shared_spans].first_task) // a tile that only one row is left for
    return false;
  uint32_t n = __shfl_sync(0xffffffffu, __ldcg(u.arrived + k.first_member * u.a.n_kv_heads + p.head), 0); // one answer for all lanes
  __threadfence();
  return n + k.n_keys == bp.members[k.first_member].n_keys;
}

// The end of a piece that one warp did: its rows lane / 4 and + 8 to the output or to the partial.
template <int HD>
__device__ __forceinline__ void finish_alone(warp_state<HD> &st, const unified_args &u, const block_plan &bp, const td_attention_task &k,
                                             const piece_at &p, bool last)
{
  uint32_t lane = threadIdx.x % 32, group = u.a.group, slot = slot_of(k, p);
  if (last) {
    merge_at_hand<HD>(st, u, bp, k, p);
    slot = TD_ATTENTION_DIRECT;
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t row = lane / 4 + 8 * h;
    float unit = unit_of_row(st.o, h), per_unit = 1 / unit;
    if (row >= k.n_members * group)
      continue;
    if (slot == TD_ATTENTION_DIRECT) {
      bf16 *dst = u.a.out + ((size_t)bp.members[k.first_member + row / group].token * u.a.n_heads + p.head * group + row % group) * HD +
                  2 * (lane % 4);
#pragma unroll
      for (int d = 0; d < HD / 8; d++) // divided as merge_member does: the result is the same whoever comes last
        *(uint32_t *)(dst + d * 8) = pack2(divided(st.o[d][2 * h], st.l[h]), divided(st.o[d][2 * h + 1], st.l[h]));
      continue;
    }
    unsigned char *dst = partial_at<HD>(u.partials, (size_t)slot * group + row);
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
      put_pair(dst, d * 8 + 2 * (lane % 4), in_units(st.o[d][2 * h], st.o[d][2 * h + 1], per_unit));
    if (lane % 4 == 0)
      put_end<HD>(dst, st.m[h], st.l[h], unit);
  }
  if (slot != TD_ATTENTION_DIRECT)
    arrive_and_merge_alone<HD>(u, bp, k, p);
}

// The end of a piece that all did: the warps' sums, in their order, to the output or to the partial.
template <int HD>
__device__ __forceinline__ void finish_small(const warp_state<HD> &st, const unified_args &u, const block_plan &bp,
                                             const td_attention_task &k, const piece_at &p, float *sums)
{
  constexpr int PER_LANE = HD / 32, STRIDE = SUM_ROWS * (HD + 2);
  uint32_t warp = (threadIdx.x - WG) / 32, lane = threadIdx.x % 32, group = u.a.group, n_rows = k.n_members * group, slot = slot_of(k, p);
  for (uint32_t row0 = 0; row0 < n_rows; row0 += SUM_ROWS) {
    if (row0 > 0)
      sync_compute();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t in_round = lane / 4 + 8 * h - row0;
      float *r = sums + warp * STRIDE + in_round * (HD + 2);
      if (in_round >= SUM_ROWS)
        continue;
#pragma unroll
      for (int d = 0; d < HD / 8; d++)
        *(float2 *)(r + d * 8 + 2 * (lane % 4)) = make_float2(st.o[d][2 * h], st.o[d][2 * h + 1]);
      if (lane % 4 == 0) {
        r[HD] = st.m[h];
        r[HD + 1] = st.l[h];
      }
    }
    sync_compute();
    uint32_t row = row0 + warp;
    if (warp >= SUM_ROWS || row >= n_rows)
      continue;
    const float *r = sums + warp * (HD + 2);
    float m = -INFINITY, l = 0, o[PER_LANE] = {};
#pragma unroll
    for (int w = 0; w < UNIFIED_WARPS; w++)
      m = fmaxf(m, r[w * STRIDE + HD]);
    float safe = m == -INFINITY ? 0 : m;
#pragma unroll
    for (int w = 0; w < UNIFIED_WARPS; w++) {
      float f = exp2f(r[w * STRIDE + HD] - safe);
      l += r[w * STRIDE + HD + 1] * f;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++)
        o[i] += r[w * STRIDE + i * 32 + lane] * f;
    }
    if (slot == TD_ATTENTION_DIRECT) {
      bf16 *dst = u.a.out + ((size_t)bp.members[k.first_member + row / group].token * u.a.n_heads + p.head * group + row % group) * HD;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++)
        dst[i * 32 + lane] = __float2bfloat16(divided(o[i], l));
    } else {
      unsigned char *dst = partial_at<HD>(u.partials, (size_t)slot * group + row);
      float top = 0;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++)
        top = fmaxf(top, fabsf(o[i]));
      float unit = unit_of(warp_max(top)), per_unit = 1 / unit;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++)
        ((__half *)dst)[i * 32 + lane] = __float2half_rn(o[i] * per_unit);
      if (lane == 0)
        put_end<HD>(dst, m, l, unit);
    }
  }
  if (slot != TD_ATTENTION_DIRECT)
    arrive_and_merge<HD>(u, bp, k, p);
  else
    sync_compute(); // the sums are free
}

// Small tasks [t_begin, t_end), by all that compute. `wait`: the step's own writes are not known to be there yet.
template <int HD>
__device__ __forceinline__ void run_small(slice_copies<HD> &in, const unified_args &u, const block_plan &bp, uint32_t t_begin, uint32_t t_end,
                                          float *sums, bool wait)
{
  using S = unified_shape<HD>;
  uint32_t n_done = in.n;
  fence_global_writes(); // pages were written by ordinary stores
  in.begin(bp, t_begin, t_end);
  if (wait) {
    while (in.n - n_done < S::DEPTH && in.find(bp) && !in.is_new(bp) && in.prepare(bp))
      in.copy();
    wait_for_input();
    fence_global_writes();
  }
  while (in.n - n_done < S::DEPTH && in.prepare(bp))
    in.copy();
  for (piece_at p = first_piece(bp, t_begin); p.t != t_end; p = piece_after(bp, p, t_end)) {
    const td_attention_task k = bp.task(p.t);
    bool alone = in.is_short(p);
    if (alone && in.key_of(p, 0) >= p.end) // another warp's
      continue;
    uint32_t q[HD / 16][4];
    int32_t last = (int32_t)k.n_keys - 1;
    const query_positions pos = {last, last, u.a.window > 0 ? last - (int32_t)u.a.window + 1 : 0, last + 1};
    load_small_queries<HD>(q, u.a, bp, k, p.head);
    bool last_piece = alone && is_last(u, bp, k, p);
    warp_state<HD> st;
    clear(st);
    for (uint32_t key = in.key_of(p, 0), step = (alone ? 1 : UNIFIED_WARPS) * SLICE_KEYS; key < p.end; key += step, n_done++) {
      uint32_t stage = n_done % S::DEPTH, smem_k = in.smem + stage * 2 * S::SLICE_BYTES;
      bool more = in.prepare(bp);
      barrier_wait(in.bars + stage * 8, n_done / S::DEPTH & 1);
      if (key + SLICE_KEYS > k.n_keys)
        zero_slice<HD>(smem_k + S::SLICE_BYTES, k.n_keys - key);
      process_tile<HD, SLICE_KEYS, page_lines>(st, q, smem_k, smem_k + S::SLICE_BYTES, 0, key, pos, u.a);
      __syncwarp();
      if (more)
        in.copy();
    }
    finish_sums(st);
    if (alone)
      finish_alone<HD>(st, u, bp, k, p, last_piece);
    else
      finish_small<HD>(st, u, bp, k, p, sums);
  }
}

// ---- tiles ----

// Tiles of tasks [t_begin, t_end), by one warp.
template <int HD>
__device__ __forceinline__ void produce_tiles(const unified_args &u, const device_batch &batch, const block_plan &bp, uint32_t t_begin,
                                              uint32_t t_end, tile_copies<HD> &copies)
{
  size_t half = (size_t)batch.page_tokens * HD;
  fence_global_writes();
  for (piece_at p = first_piece(bp, t_begin); p.t != t_end; p = piece_after(bp, p, t_end)) {
    tile_source t = {u.a.kv + p.head * 2 * half, batch.page_table + bp.task(p.t).first_page, half * 2 * u.a.n_kv_heads, batch.page_tokens,
                     p.begin, p.end};
    for (; t.kv0 < t.kv_end; t.kv0 += key_tile<HD>::KEYS)
      copies.add(t);
  }
  copies.end();
}

// A piece's queries on their way: a thread's share of its warpgroup's 64 rows. Rows past the last repeat it.
template <int HD> struct tile_queries {
  static constexpr uint32_t CHUNKS = HD / 8, EACH = 64 * CHUNKS / WG;
  const bf16 *src[EACH];

  __device__ __forceinline__ static uint32_t row(uint32_t i, uint32_t wg) { return wg * 64 + (i * WG + threadIdx.x % WG) / CHUNKS; }
  __device__ __forceinline__ static uint32_t chunk(uint32_t i) { return (i * WG + threadIdx.x % WG) % CHUNKS; }

  // Where they are, by the plan alone. All that is asked of memory is asked at once. A row's member is found by a multiplication, exactly:
  // rows and groups are few.
  __device__ __forceinline__ void find(const attention_args &a, const block_plan &bp, const piece_at &piece, uint32_t wg)
  {
    static_assert(TILE_ROWS <= 128 && TD_GROUP_MAX <= 64, "else the multiplication is not exact");
    const td_attention_task &k = bp.task(piece.t);
    uint32_t last = k.n_members * a.group - 1, per_group = 65536 / a.group + 1, member[EACH], token[EACH];
    const td_attention_member *members = bp.members + k.first_member;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
      member[i] = min(row(i, wg), last) * per_group >> 16;
      token[i] = members[member[i]].token;
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
      src[i] = a.qkv + (size_t)token[i] * (a.n_heads + 2 * a.n_kv_heads) * HD +
               (piece.head * a.group + min(row(i, wg), last) - member[i] * a.group) * HD + chunk(i) * 8;
  }

  __device__ __forceinline__ void copy(unsigned char *smem_q, uint32_t wg) const
  {
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(smem_q + kv_chunk_at(HD, row(i, wg), chunk(i)) * 2)),
                   "l"(src[i])
                   : "memory");
  }

  // All that were copied, of all threads of the warpgroup.
  __device__ __forceinline__ static void await(uint32_t wg)
  {
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_shared_writes();
    named_sync(1 + wg, WG);
  }
};

// This thread's rows r0 and r0 + 8 of a piece.
template <int HD>
__device__ __forceinline__ void store_tile(const unified_args &u, const block_plan &bp, const td_attention_task &k, const piece_at &p,
                                           const consumer<HD> &c, uint32_t r0)
{
  uint32_t group = u.a.group, last = k.n_members * group - 1, slot = slot_of(k, p);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sum, unit = unit_of_tile_row<HD>(c, h, &sum), per_unit = 1 / unit;
    uint32_t r = r0 + 8 * h;
    if (r > last)
      continue;
    if (slot == TD_ATTENTION_DIRECT) {
      float inv = divided(1, sum);
      bf16 *dst = u.a.out + ((size_t)bp.members[k.first_member + r / group].token * u.a.n_heads + p.head * group + r % group) * HD +
                  2 * (threadIdx.x % 4);
#pragma unroll
      for (int j = 0; j < HD / 8; j++)
        *(uint32_t *)(dst + j * 8) = pack2(c.o[4 * j + 2 * h] * inv, c.o[4 * j + 2 * h + 1] * inv);
      continue;
    }
    unsigned char *dst = partial_at<HD>(u.partials, (size_t)slot * group + r);
#pragma unroll
    for (int j = 0; j < HD / 8; j++)
      put_pair(dst, j * 8 + 2 * (threadIdx.x % 4), in_units(c.o[4 * j + 2 * h], c.o[4 * j + 2 * h + 1], per_unit));
    if (threadIdx.x % 4 == 0)
      put_end<HD>(dst, c.m[h] * u.a.scale_log2, sum, unit);
  }
}

// Tasks [t_begin, t_end), by both warpgroups. n: tiles so far. smem_q: room for two pieces' queries: a piece's come while the one before is
// at work. `wait`: the step's own writes are not known to be there yet.
template <int HD>
__device__ __forceinline__ void consume_tiles(const unified_args &u, const block_plan &bp, uint32_t t_begin, uint32_t t_end,
                                              unsigned char *smem_q, const tile_ring<HD> &ring, uint32_t &n, bool wait)
{
  using S = key_tile<HD>;
  constexpr uint32_t Q_BYTES = unified_shape<HD>::Q_BYTES;
  uint32_t wg = threadIdx.x / WG - 1, r0 = wg * 64 + threadIdx.x % WG / 32 * 16 + threadIdx.x % 32 / 4;
  consumer<HD> c;
  piece_at p = first_piece(bp, t_begin), next;
  tile_queries<HD> queries;
  queries.find(u.a, bp, p, wg);
  if (wait)
    wait_for_input();
  queries.copy(smem_q, wg);
  for (uint32_t turn = 0; p.t != t_end; p = next, turn ^= 1) {
    const td_attention_task k = bp.task(p.t);
    uint32_t q16 = warp_uniform((shared_address(smem_q) + turn * Q_BYTES + wg * 8 * S::GROUP_BYTES) >> 4);
    next = piece_after(bp, p, t_end);
    queries.await(wg);
    if (next.t != t_end) {
      queries.find(u.a, bp, next, wg);
      queries.copy(smem_q + (turn ^ 1) * Q_BYTES, wg);
    }
    uint32_t n_tiles = warp_uniform((p.end - p.begin + S::KEYS - 1) / S::KEYS);
    uint32_t seen = u.a.window > 0 && k.n_keys > u.a.window ? k.n_keys - u.a.window : 0; // only a row alone is longer than its window
    ring.attend(c, n, n_tiles, wg, q16, u.a.scale_log2, [&](consumer<HD> &tile, uint32_t i) {
      uint32_t kv0 = p.begin + i * S::KEYS;
      if (kv0 + S::KEYS > p.end || kv0 < seen)
        tile.mask_outside(kv0, seen, p.end);
    });
    n = warp_uniform(n + n_tiles);
    ring.multiply_last(c, n - 1);
    ring.end_last(c, n - 1);
    store_tile<HD>(u, bp, k, p, c, r0);
    if (slot_of(k, p) != TD_ATTENTION_DIRECT)
      arrive_and_merge<HD>(u, bp, k, p);
    else
      sync_compute();
  }
}

// Where all threads meet between runs of tasks: in two barriers, of which each is waited at in one place only.
__device__ __forceinline__ void meet_as_producer()
{
  named_sync(6, UNIFIED_THREADS);
  named_arrive(7, UNIFIED_THREADS);
}
__device__ __forceinline__ void meet_as_consumer()
{
  named_arrive(6, UNIFIED_THREADS);
  named_sync(7, UNIFIED_THREADS);
}

// Where the run of tasks of one kind ends that begins at t.
__device__ __forceinline__ uint32_t run_end(const block_plan &bp, uint32_t t, uint32_t group)
{
  bool small = bp.is_small(t, group);
  do
    t++;
  while (t < bp.end && bp.is_small(t, group) == small);
  return t;
}
#endif

template <int HD>
__global__ void __launch_bounds__(UNIFIED_THREADS, 1) unified_kernel(unified_args u, device_batch batch, bool recorded)
{
#ifdef TD_HAS_WGMMA
  using S = unified_shape<HD>;
  extern __shared__ unsigned char smem_raw[];
  __shared__ uint64_t tile_bars[tile_ring<HD>::BARRIERS], slice_bars[UNIFIED_WARPS * S::DEPTH];
  __shared__ alignas(16) td_attention_task at_hand[2][TASKS_AT_HAND];
  unsigned char *smem = smem_raw + (1024 - shared_address(smem_raw) % 1024) % 1024;
  unsigned char *smem_k = smem + 2 * S::Q_BYTES;
  const tile_ring<HD> ring = {smem_k, smem_k + TILE_STAGES * key_tile<HD>::TILE_BYTES, shared_address(tile_bars)};
  let_next_start();
  if (!recorded)
    wait_for_input();
  block_plan bp;
  bp.h = (const td_attention_header *)u.plan;
  const uint32_t *first_task = (const uint32_t *)(bp.h + 1) + blockIdx.x;
  uint32_t firsts[2], ends[2]; // tasks of shared spans, and of rows' own
  bp.tasks = (const td_attention_task *)(u.plan + bp.h->tasks_at);
  bp.spans = (const td_attention_span *)(u.plan + bp.h->spans_at);
  bp.members = (const td_attention_member *)(u.plan + bp.h->members_at);
  bp.sources = (const uint32_t *)(u.plan + bp.h->sources_at);
  bool empty = batch.counts[COUNT_TASKS] == 0; // then the plan is another step's
#pragma unroll
  for (int part = 0; part < 2; part++) {
    firsts[part] = first_task[part * (gridDim.x + 1)];
    ends[part] = empty ? firsts[part] : first_task[part * (gridDim.x + 1) + 1];
  }
  // A block without tasks leaves at once, so that the next kernel's find room. The first one never does so before the kernels before
  // have ended, and hence this one does not.
  if (firsts[0] == ends[0] && firsts[1] == ends[1]) {
    if (recorded && blockIdx.x == 0)
      wait_for_input();
    return;
  }
#pragma unroll
  for (int part = 0; part < 2; part++) {
    uint32_t n_at_hand = min(ends[part] - firsts[part], (uint32_t)TASKS_AT_HAND);
    for (uint32_t i = threadIdx.x; i < 2 * n_at_hand; i += UNIFIED_THREADS)
      ((uint4 *)at_hand[part])[i] = ((const uint4 *)(bp.tasks + firsts[part]))[i];
  }
  if (threadIdx.x == 0) {
    ring.make();
    for (int i = 0; i < UNIFIED_WARPS * S::DEPTH; i++)
      barrier_init(shared_address(slice_bars) + i * 8, 1);
    barriers_made();
  }
  __syncthreads();
  uint32_t n_tiles = 0;
  bool waiting = recorded;
  if (threadIdx.x < WG) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)PRODUCER_REGISTERS_U));
    tile_copies<HD> copies = {ring, 0, 0, {}, false};
    for (int part = 0; part < 2; part++) {
      if (waiting && part == 1) // shared spans are of pages that no step writes any more
        wait_for_input();
      bp.at_hand = at_hand[part];
      bp.first = part ? firsts[1] : firsts[0];
      bp.end = part ? ends[1] : ends[0];
      for (uint32_t t = bp.first, t_end; t < bp.end; t = t_end) {
        t_end = run_end(bp, t, u.a.group);
        if (threadIdx.x < 32 && !bp.is_small(t, u.a.group))
          produce_tiles<HD>(u, batch, bp, t, t_end, copies);
        fence_shared_writes();
        meet_as_producer();
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)COMPUTE_REGISTERS_U));
    uint32_t warp = (threadIdx.x - WG) / 32;
    slice_copies<HD> in;
    in.kv = u.a.kv;
    in.page_table = batch.page_table;
    in.page_shift = log2_of(batch.page_tokens);
    in.page_stride = (size_t)batch.page_tokens * HD * 2 * u.a.n_kv_heads;
    in.smem = shared_address(smem) + warp * S::RING_BYTES;
    in.bars = shared_address(slice_bars) + warp * S::DEPTH * 8;
    in.n = 0;
    in.policy = read_once_policy();
    for (int part = 0; part < 2; part++) {
      bp.at_hand = at_hand[part];
      bp.first = part ? firsts[1] : firsts[0];
      bp.end = part ? ends[1] : ends[0];
      for (uint32_t t = bp.first, t_end; t < bp.end; t = t_end) {
        t_end = run_end(bp, t, u.a.group);
        if (bp.is_small(t, u.a.group)) {
          run_small<HD>(in, u, bp, t, t_end, (float *)(smem + UNIFIED_WARPS * S::RING_BYTES), waiting);
        } else {
          consume_tiles<HD>(u, bp, t, t_end, smem, ring, n_tiles, waiting);
        }
        waiting = false;
        fence_shared_writes(); // the next run's copies go where this one's stores went
        meet_as_consumer();
      }
    }
    if (waiting)
      wait_for_input();
  }
#endif
}

template <int HD> static void launch(cuda_backend *b, const unified_args &u)
{
  static bool sized = false; // the attribute is per kernel, for the life of the process
  if (!sized) {
    note(b, cudaFuncSetAttribute(unified_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, unified_shape<HD>::SMEM_BYTES));
    sized = true;
  }
  queue_kernel(b, unified_kernel<HD>, dim3((unsigned)b->n_sms), UNIFIED_THREADS, unified_shape<HD>::SMEM_BYTES, u, b->batch,
               b->padded_decode);
}

bool td_cuda_has_unified_attention(uint32_t head_dim) { return head_dim == 64 || head_dim == 96 || head_dim == 128; }

void td_cuda_unified_attention(cuda_backend *b, const attention_args &a, uint32_t head_dim)
{
  unified_args u = {a, b->device_plan, b->plan_partials, b->plan_arrived};
  switch (head_dim) { // td_cuda_has_unified_attention said so
  case 64: launch<64>(b, u); break;
  case 96: launch<96>(b, u); break;
  case 128: launch<128>(b, u); break;
  default: TD_BUG_ON(true);
  }
}

void td_cuda_plan_in_one_launch(const cuda_backend *b, td_attention_planner_config *c)
{
  c->shared_only = false;
  c->n_workers = (uint32_t)b->n_sms;
  c->tile_rows = TILE_ROWS;
  c->cost = td_attention_cost_of_h200(c->n_workers);
}

bool td_cuda_planner_config(const cuda_backend *b, const td_kv_shape *s, td_attention_planner_config *out)
{
  bool wgmma = b->has_wgmma && td_cuda_has_wgmma_attention(s->head_dim);
  if (b->config.attention == 0 || b->config.batch_invariant || !wgmma || !td_cuda_has_unified_attention(s->head_dim))
    return false;
  td_attention_planner_config c = {};
  c.policy = b->config.attention == TD_ATTENTION_AUTO ? TD_ATTENTION_UNIFIED : (td_attention_policy)(b->config.attention - 1);
  c.max_rows = b->config.max_rows;
  c.n_kv_heads = s->n_kv_heads;
  c.group = s->n_heads / s->n_kv_heads;
  c.head_dim = s->head_dim;
  c.page_tokens = s->page_tokens;
  c.window_tokens = s->window_tokens;
  if (b->config.attention == TD_ATTENTION_AUTO && c.group > TD_DECODE_ROWS)
    return false; // more than a decode item holds: rows as prefill tiles
  c.shared_only = c.policy == TD_ATTENTION_UNIFIED && c.group <= TD_DECODE_ROWS; // larger groups have no items for one token
  if (c.shared_only) {
    c.n_workers = td_cuda_shares_blocks(b, s->head_dim);
    c.tile_rows = SPAN_ROWS;
    c.cost = td_attention_cost_of_h200_apart(c.n_workers);
  } else {
    td_cuda_plan_in_one_launch(b, &c);
  }
  c.max_slots = td_attention_slots_of(&c);
  if (b->config.attention != TD_ATTENTION_AUTO)
    c.cost.apart_us = 0; // whoever asks for what rows share has it
  *out = c;
  return true;
}

td_status td_cuda_make_planner(cuda_backend *b, const td_kv *kv, td_error *err)
{
  td_attention_planner_config c;
  td_attention_planner_destroy(b->planner);
  b->planner = nullptr;
  b->own_are_items = false;
  if (!td_cuda_planner_config(b, &kv->shape, &c))
    return TD_OK;
  TD_BUG_ON(c.shared_only && c.tile_rows > SPAN_ROWS);
  TD_TRY(td_attention_planner_create(&c, &b->planner, err));
  b->own_are_items = c.shared_only;
  TD_TRY(td_cuda_alloc_array(b, td_attention_block_bytes_max(&c), &b->device_plan, err));
  TD_TRY(td_cuda_alloc_array(b, td_cuda_plan_partial_bytes(&c), &b->plan_partials, err));
  TD_TRY(td_cuda_alloc_array(b, td_cuda_pieces_of_all_heads(&c), &b->pieces_done, err));
  return td_cuda_alloc_array(b, (size_t)c.max_rows * c.n_kv_heads, &b->plan_arrived, err);
}
