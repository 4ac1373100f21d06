// Attention of decodes on Hopper. Each warp of a CTA streams its own KV tiles of a sequence's pages through
// its own ring.
//
// A CTA takes a work item (a decode, or a KV split of a long one) and a kv head. Its warps take KV tiles of
// 32 tokens in turn; asynchronous copies load K and V in the page's layout. No warp waits for another before
// the epilogue. So a CTA is small and several are resident on an SM, which keeps memory busy while some of
// them begin or end. Sequences of few keys are warp-level items: each warp does one by itself, because a
// CTA's prologue and epilogue would take longer than its main loop.
//
// In a captured step the plan has been unpacked before the first kernel, and all KV except that of the step's
// own tokens is from earlier steps. So a CTA starts to read it before it waits for the kernels before. In
// such a step it may also do rope_kv.cu's work for the step's own tokens (fused.cuh).
//
// If a sequence shares keys with others, its items have only its private KV. Other CTAs of the launch attend
// to the shared keys for all members: here, if the members' query rows are as few as a decode may have (a
// small group), else in attention_prefix.cuh. The CTA that ends the sequence reduces their partials
// (attention_prefix_reduction.cuh). Source: FlashDecoding's split; PersistentKV's row-local splits.
#include "kernels/cuda/attention_prefix_reduction.cuh"
#include "kernels/cuda/attention_kv_tiles.cuh"
#include "kernels/cuda/rope.cuh"

template <int HD> struct decode_shape : warp_ring_shape<HD, HD == 64 ? 2 : 1> {
  static constexpr int STAGES = HD == 64 ? 2 : 1;
  using base = warp_ring_shape<HD, STAGES>;
  static constexpr int SMEM_BYTES = 1024 + WARPS * base::WARP_BYTES;            // 1024 bytes to align
  static constexpr int CTAS_PER_SM = HD == 256 ? 0 : resident_on_sm(HD, false); // CTAs an SM; 0: no limit
  static constexpr int SHARES_CTAS_PER_SM =
      HD == 256 ? 0 : resident_on_sm(HD, true); // fewer, because attend_prefix_splits takes more registers
  static_assert(16 * (HD + 4) * 4 <= base::WARP_BYTES, "reduce_warp and reduce_cta need this");
  static_assert(HD == 256 || (prefix_tile<HD>::ALL_BYTES <= WARPS * base::WARP_BYTES &&
                              prefix_tile<HD>::BARRIERS <= WARPS * base::WARP_BARRIERS),
                "attend_prefix_splits needs this");
};

// How the items of a launch use shared prefixes. SHARES_*: items may be prefix splits, or sequences that
// reduce partials of prefix splits, head by head (BY_HEAD) or by the threads of a tile (IN_TILES).
enum decode_form { PLAIN, SHARES_BY_HEAD, SHARES_IN_TILES };
template <decode_form FORM> constexpr bool shares = FORM >= SHARES_BY_HEAD;

// A CTA's shared memory besides its rings: that of its decodes, or that of its prefix splits. ROTATES:
// queries, keys and values come straight from the linear; every sequence has one token, and the step is
// captured.
template <int HD, decode_form FORM, bool ROTATES> union decode_state {
  struct {
    prefix_runs runs[shares<FORM> ? WARPS : 1];
    alignas(16) bf16 queries[ROTATES ? TD_DECODE_ROWS * (HD + 8) : 8];
    float2 rotations[ROTATES ? HD / 2 : 1];
  } decodes;
  struct {
    split_prefetch prefetched[shares<FORM> ? WARPS : 1];
    float2 rotations[shares<FORM> && ROTATES ? WARPS * HD / 2 : 1];
  } splits;
};

#ifdef TD_HAS_MBARRIER
// Rotates the item's queries into shared memory. If the item holds the sequence's newest token, also writes
// that token's K and V to its page.
template <int HD>
__device__ __forceinline__ void rotate_item(const attention_args &a, const decode_rotation &rotation,
                                            const device_batch &batch, const td_attention_item &it,
                                            uint32_t kv_head, bf16 *queries, const float2 *rotations)
{
  constexpr uint32_t LANES = HD / 16, STRIDE = HD + 8;
  static_assert(WARPS * 32 % LANES == 0 || WARPS * 32 / LANES >= TD_DECODE_ROWS + 2,
                "else the threads that are left over would do heads of the next round too");
  uint32_t lane = threadIdx.x % LANES, pos = it.position, line = pos & (batch.page_tokens - 1);
  uint32_t n_heads = a.gqa_group + (it.kv_end > pos ? 2 : 0), n_all = a.n_heads + 2 * a.n_kv_heads;
  uint32_t chunk[2] = {first_chunk(lane, rotation.halves), second_chunk(lane, HD, rotation.halves)};
  size_t half_page = (size_t)batch.page_tokens * HD;
  for (uint32_t h = threadIdx.x / LANES; h < n_heads; h += WARPS * 32 / LANES) {
    bool is_q = h < a.gqa_group, is_v = h == a.gqa_group + 1;
    uint32_t head = is_q ? kv_head * a.gqa_group + h : a.n_heads + (is_v ? a.n_kv_heads : 0) + kv_head;
    bf16x8 rotated[2];
    rotate_head<HD>(rotated, a.qkv + ((size_t)it.query * n_all + head) * HD, chunk,
                    is_q   ? rotation.q_norm
                    : is_v ? nullptr
                           : rotation.k_norm,
                    rotation.eps, is_v ? nullptr : rotations + first_pair(chunk[0], rotation.halves),
                    rotation.halves);
    bf16 *page =
        (bf16 *)a.kv +
        ((size_t)batch.page_table[it.page_table_offset + (pos >> log2_of(batch.page_tokens))] * a.n_kv_heads +
         kv_head) *
            2 * half_page;
#pragma unroll
    for (int c = 0; c < 2; c++)
      *(bf16x8 *)(is_q ? queries + h * STRIDE + chunk[c] * 8
                       : page + (is_v ? half_page : 0) + kv_chunk_at(HD, line, chunk[c])) = rotated[c];
  }
}

template <int HD>
__device__ __forceinline__ void load_rotated_queries(uint32_t q[HD / 16][4], const bf16 *queries,
                                                     uint32_t n_rows)
{
  uint32_t lane = threadIdx.x % 32;
  const bf16 *src[2];
  for (int h = 0; h < 2; h++)
    src[h] = queries + min(lane / 4 + 8 * h, n_rows - 1) *
                           (HD + 8); // rows past the end repeat the last one and are dropped later
#pragma unroll
  for (int c = 0; c < HD / 16; c++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      q[c][e] = *(const uint32_t *)(src[e % 2] + c * 16 + (e / 2) * 8 + 2 * (lane % 4));
}
#endif

// Loads the query rows of a prefix split, as load_queries does for a decode.
template <int HD>
__device__ __forceinline__ void load_split_queries(uint32_t q[HD / 16][4], const attention_args &a,
                                                   const td_attention_member *members, uint32_t n_rows,
                                                   uint32_t kv_head)
{
  uint32_t lane = threadIdx.x % 32;
  const bf16 *src[2];
  for (int h = 0; h < 2; h++) {
    uint32_t p = min(lane / 4 + 8 * h, n_rows - 1);
    src[h] = a.qkv + ((size_t)members[p / a.gqa_group].token * (a.n_heads + 2 * a.n_kv_heads) +
                      kv_head * a.gqa_group + p % a.gqa_group) *
                         HD;
  }
#pragma unroll
  for (int c = 0; c < HD / 16; c++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      q[c][e] = *(const uint32_t *)(src[e % 2] + c * 16 + (e / 2) * 8 + 2 * (lane % 4));
}

// Rotates the query rows of a prefix split into shared memory, each by a segment of threads.
template <int HD> struct split_row_rotation {
  static constexpr uint32_t LANES = HD / 16;
  static_assert(WARPS * 32 / LANES >= TD_DECODE_ROWS || HD == 256, "each row has a segment");
  const bf16 *src;     // the segment's row; null: it has none
  float2 rotations[8]; // of the lane's pairs

  // Reads only the plan.
  __device__ __forceinline__ void prepare(const attention_args &a, const decode_rotation &rotation,
                                          const td_attention_member *members, uint32_t n_rows,
                                          uint32_t kv_head)
  {
    uint32_t p = threadIdx.x / LANES, chunk0 = first_chunk(threadIdx.x % LANES, rotation.halves);
    src = nullptr;
    if (p >= n_rows)
      return;
    const td_attention_member m = members[p / a.gqa_group];
    src = a.qkv +
          ((size_t)m.token * (a.n_heads + 2 * a.n_kv_heads) + kv_head * a.gqa_group + p % a.gqa_group) * HD;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
      rotations[k] =
          rotation_of((int32_t)m.n_keys - 1, rotation.inv_freq[first_pair(chunk0, rotation.halves) + k],
                      rotation.attn_factor);
  }

  __device__ __forceinline__ void rotate(const decode_rotation &rotation, bf16 *queries) const
  {
    uint32_t lane = threadIdx.x % LANES;
    uint32_t chunk[2] = {first_chunk(lane, rotation.halves), second_chunk(lane, HD, rotation.halves)};
    bf16x8 rotated[2];
    if (!src)
      return;
    rotate_head<HD>(rotated, src, chunk, rotation.q_norm, rotation.eps, rotations, rotation.halves);
#pragma unroll
    for (int c = 0; c < 2; c++)
      *(bf16x8 *)(queries + threadIdx.x / LANES * (HD + 8) + chunk[c] * 8) = rotated[c];
  }
};

// All members see all keys of a prefix split.
__device__ __forceinline__ query_positions positions_of_all(const td_attention_item &split)
{
  return {(int32_t)split.kv_end - 1, (int32_t)split.kv_end - 1, 0, (int32_t)split.kv_end};
}

// The epilogue of a prefix split: stores the sums of the CTA's warps as partials. smem: as in reduce_cta.
template <int HD, bool IN_TILES>
__device__ __forceinline__ void reduce_split(const warp_state<HD> &st, float *smem, uint32_t n_rows,
                                             unsigned char *partials)
{
  constexpr uint32_t N = HD / 32;
  uint32_t warp = threadIdx.x / 32, first = threadIdx.x % 32 * N;
  store_rows<HD>(st, smem + warp * 16 * (HD + 4), n_rows);
  __syncthreads();
  for (uint32_t p = warp; p < n_rows; p += WARPS) {
    const row_sum<N> sum = sum_warps<HD>(smem, p);
    unsigned char *dst = partial_at<HD>(partials, p);
    float top = 0;
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
      top = fmaxf(top, fabsf(sum.o[i]));
    for (uint32_t o = 16; o > 0; o >>= 1)
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    float unit = unit_of(top);
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
      put_element<IN_TILES>(dst, first + i, __float2half_rn(sum.o[i] / unit));
    if (threadIdx.x % 32 == 0)
      put_end<HD>(dst, sum.m, sum.l, unit);
  }
}

// What a CTA works on: one item for all its warps, or one item for each warp.
struct decode_item {
  td_attention_item item;
  bool warp_level, has_item; // warp_level: each warp has its own item; has_item: this warp has one
};

// Finds the CTA's item. CTAs start in the order of their numbers (docs/attention-progress.md), and wide items
// come before warp-level ones. Returns false if the CTA has no item. Such CTAs are last, and exist only in a
// captured step, whose grid holds any step of that many sequences.
__device__ __forceinline__ bool find_item(decode_item *out, const device_batch &batch,
                                          const decode_range &range, uint32_t n_kv_heads)
{
  uint32_t at = range.first + blockIdx.x / n_kv_heads;
  out->item = range.items[min(at, range.room - 1)]; // loaded together with the counts that validate it
  uint32_t n_items = batch.counts[COUNT_ITEMS], n_wide = batch.counts[COUNT_WIDE_ITEMS];
  out->warp_level = at >= n_wide;
  out->has_item = true;
  if (!out->warp_level)
    return true;
  uint32_t first_warp_level = n_wide + (at - n_wide) * WARPS, mine = first_warp_level + threadIdx.x / 32;
  if (first_warp_level >= n_items)
    return false;
  out->has_item = mine < n_items;
  out->item = range.items[out->has_item ? mine : first_warp_level];
  return true;
}

template <int HD, decode_form FORM, bool ROTATES>
__global__ void __launch_bounds__(WARPS * 32, shares<FORM> ? decode_shape<HD>::SHARES_CTAS_PER_SM
                                                           : decode_shape<HD>::CTAS_PER_SM)
    decode_kernel(attention_args a, decode_rotation rotation, shared_prefixes shared, device_batch batch,
                  decode_range range, decode_start start)
{
#ifdef TD_HAS_MBARRIER
  using S = decode_shape<HD>;
  extern __shared__ unsigned char smem_raw[];
  __shared__ uint64_t barriers[WARPS * S::WARP_BARRIERS];
  __shared__ decode_state<HD, FORM, ROTATES> state;
  unsigned char *smem_all = smem_raw + (1024 - shared_address(smem_raw) % 1024) % 1024;
  uint32_t warp = threadIdx.x / 32, kv_head = blockIdx.x % a.n_kv_heads;
  decode_item mine;
  pdl_launch_dependents();
  if (start == STARTS_BESIDE && blockIdx.x + 1 == gridDim.x) {
    pdl_wait(); // this kernel must not end before prefill does
    return;
  }
  if (start == STARTS_AFTER)
    pdl_wait();
  if (!find_item(&mine, batch, range, a.n_kv_heads) || (ROTATES && mine.warp_level)) {
    wait_unless_beside(start);
    return;
  }
  const td_attention_item &it = mine.item;
  const bool is_split = shares<FORM> && it.n_tokens == 0; // of a prefix
#ifdef TD_HAS_WGMMA
  if constexpr (shares<FORM>)
    if (is_split && it.n_members * a.gqa_group > TD_DECODE_ROWS) {
      attend_prefix_splits<HD, FORM == SHARES_IN_TILES, ROTATES>(
          a, rotation, batch, shared, it, range.items, kv_head, shared_address(smem_all),
          shared_address(barriers), &state.splits.prefetched[warp],
          &state.splits.rotations[ROTATES ? warp * HD / 2 : 0], start);
      return;
    }
#endif
  const td_attention_member *members = is_split ? members_of(shared) + it.member : nullptr;
  uint32_t n_old = it.position, // tokens of earlier steps
      n_rows = (is_split ? it.n_members : 1) * a.gqa_group;
  kv_tile_reader<HD, S::STAGES> in;
  in.open(a, batch, it, kv_head, mine.warp_level ? 0 : warp, mine.warp_level ? 1 : WARPS);
  in.n = mine.has_item ? in.n : 0;
  in.make_ring(shared_address(smem_all), shared_address(barriers));
  uint32_t n_copied = fill_ring(in, 0, is_split ? it.kv_end : n_old), q[HD / 16][4];
  if constexpr (shares<FORM>)
    if (!is_split)
      find_prefixes(&state.decodes.runs[warp], shared, it, batch, kv_head);
  split_row_rotation<HD> split_row;
  if constexpr (ROTATES) {
    if (is_split)
      split_row.prepare(a, rotation, members, n_rows, kv_head);
    for (uint32_t i = threadIdx.x; i < HD / 2 && !is_split; i += WARPS * 32)
      state.decodes.rotations[i] = rotation_of((int32_t)n_old, rotation.inv_freq[i], rotation.attn_factor);
  }
  wait_unless_beside(start);
  if constexpr (ROTATES) {
    __syncthreads();
    if (is_split)
      split_row.rotate(rotation, state.decodes.queries);
    else
      rotate_item<HD>(a, rotation, batch, it, kv_head, state.decodes.queries, state.decodes.rotations);
    fence_global_writes(); // asynchronous copies read the token's line
    __syncthreads();
  }
  fill_ring(in, n_copied, UINT32_MAX);
  if constexpr (ROTATES)
    load_rotated_queries<HD>(q, state.decodes.queries, n_rows);
  else if (is_split)
    load_split_queries<HD>(q, a, members, n_rows, kv_head);
  else
    load_queries<HD>(q, a, it, kv_head, 0);
  warp_state<HD> st;
  clear(st);
  attend_kv_tiles(st, in, q, a, is_split ? positions_of_all(it) : positions_of(it, a, 0));
  if constexpr (shares<FORM>)
    if (is_split) {
      __syncthreads(); // no warp uses its ring any more
      reduce_split<HD, FORM == SHARES_IN_TILES>(st, (float *)smem_all, n_rows,
                                                partials_of<HD>(a, shared, it, kv_head));
      tell_done(a, batch, shared, it, kv_head);
      return;
    }
  if constexpr (FORM == SHARES_IN_TILES)
    if (it.n_memberships > 0 && mine.has_item &&
        it.partial + 1 >= it.first_partial + it.n_partials) // the last of the KV splits adds them
      add_prefixes(st, a, shared, state.decodes.runs[warp], it.n_memberships, kv_head,
                   mine.warp_level ? 0 : warp, mine.warp_level ? 1 : WARPS);
  const prefix_reduction prefixes = {shared.partials,
                                     &state.decodes.runs[shares<FORM> ? warp : 0],
                                     it.n_memberships,
                                     a.gqa_group,
                                     shared.done + kv_head,
                                     a.n_kv_heads,
                                     false};
  float *mine_smem = (float *)(smem_all + warp * S::WARP_BYTES);
  if (!ROTATES && mine.warp_level) {
    if (mine.has_item) {
      if constexpr (FORM == SHARES_BY_HEAD)
        reduce_warp<HD>(st, a, it, kv_head, mine_smem, prefixes);
      else
        reduce_warp<HD>(st, a, it, kv_head, mine_smem);
    }
    return;
  }
  __syncthreads(); // no warp uses its ring any more
  if constexpr (FORM == SHARES_BY_HEAD)
    reduce_cta<HD>(st, a, it, kv_head, (float *)smem_all, prefixes);
  else
    reduce_cta<HD>(st, a, it, kv_head, (float *)smem_all);
#endif
}

template <int HD, decode_form FORM, bool ROTATES>
static void launch(cuda_backend *b, attention_group *g, const attention_args &a,
                   const decode_rotation &rotation, uint32_t first, uint32_t n_ctas)
{
  auto kernel = decode_kernel<HD, FORM, ROTATES>;
  decode_start start = is_capture(&b->attention)        ? STARTS_EARLY
                       : g->work.prefill.sms_beside > 0 ? STARTS_BESIDE
                                                        : STARTS_AFTER;
  queue_kernel(
      &b->device, kernel, dim3(n_ctas * a.n_kv_heads + (start == STARTS_BESIDE)), WARPS * 32,
      decode_shape<HD>::SMEM_BYTES, a, rotation,
      shared_prefixes{g->device_plan, g->prefix_partials, g->prefix_flags, b->attention.n_launches++},
      td_cuda_group_batch(b, g), decode_range{g->device_items, first, g->work.max_items}, start);
  cudaGraphNode_t node = is_capture(&b->attention) ? td_cuda_captured_node(&b->device) : nullptr;
  if (node)
    g->captured_decodes.push_back(node);
}

template <bool ROTATES, decode_form FORM>
static void launch_for(cuda_backend *b, attention_group *g, const attention_args &a,
                       const decode_rotation &rotation, uint32_t first, uint32_t n_ctas)
{
  switch (g->spec.head_dim) { // td_cuda_has_wgmma_attention was checked before
  case 64: launch<64, FORM, ROTATES>(b, g, a, rotation, first, n_ctas); break;
  case 96: launch<96, FORM, ROTATES>(b, g, a, rotation, first, n_ctas); break;
  case 128: launch<128, FORM, ROTATES>(b, g, a, rotation, first, n_ctas); break;
  case 256:
    if constexpr (!shares<FORM>) { // these heads have no planner
      launch<256, FORM, ROTATES>(b, g, a, rotation, first, n_ctas);
      break;
    }
  default: TD_BUG_ON(true);
  }
}

template <bool ROTATES>
static void launch_form(cuda_backend *b, attention_group *g, const attention_args &a,
                        const decode_rotation &rotation, uint32_t first, uint32_t n_ctas)
{
  if (!g->planner || !shares_prefixes(&b->attention))
    launch_for<ROTATES, PLAIN>(b, g, a, rotation, first, n_ctas);
  else if (a.gqa_group > TD_REDUCE_BY_HEAD_GQA_GROUP_MAX)
    launch_for<ROTATES, SHARES_IN_TILES>(b, g, a, rotation, first, n_ctas);
  else
    launch_for<ROTATES, SHARES_BY_HEAD>(b, g, a, rotation, first, n_ctas);
}

void td_cuda_decode_attention(cuda_backend *b, attention_group *g, const attention_args &a, uint32_t first,
                              uint32_t n_ctas)
{
  launch_form<false>(b, g, a, {}, first, n_ctas);
}

void td_cuda_decode_rotated(cuda_backend *b, attention_group *g, const attention_args &a,
                            const decode_rotation &rotation, uint32_t n_ctas)
{
  TD_BUG_ON(!is_capture(&b->attention) || a.gqa_group > TD_DECODE_ROWS);
  launch_form<true>(b, g, a, rotation, 0, n_ctas);
}

template <int HD, decode_form FORM> static cudaError_t allow_smem()
{
  cudaError_t plain = cudaFuncSetAttribute(decode_kernel<HD, FORM, false>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           decode_shape<HD>::SMEM_BYTES),
              rotates = cudaFuncSetAttribute(decode_kernel<HD, FORM, true>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             decode_shape<HD>::SMEM_BYTES);
  return plain != cudaSuccess ? plain : rotates;
}

template <int HD> static cudaError_t allow_smem_all()
{
  cudaError_t e = allow_smem<HD, PLAIN>();
  if constexpr (HD != 256) {
    e = e != cudaSuccess ? e : allow_smem<HD, SHARES_BY_HEAD>();
    e = e != cudaSuccess ? e : allow_smem<HD, SHARES_IN_TILES>();
  }
  return e;
}

cudaError_t td_cuda_decode_allow_smem(uint32_t head_dim)
{
  return head_dim == 64    ? allow_smem_all<64>()
         : head_dim == 96  ? allow_smem_all<96>()
         : head_dim == 128 ? allow_smem_all<128>()
                           : allow_smem_all<256>();
}
