// Attention of decodes on Hopper: every warp of a block streams its own slices of a row's pages through its own ring.
//
// A block takes an item (a decode row, or a share of a long one) and a kv head; its warps take slices of 16 tokens in turn, which
// asynchronous copies bring, K and V as they lie in the page. No warp waits for another before the end. So blocks are small, an
// SM holds several, and memory is kept busy while some of them begin or end.
// In a recorded step the plan has been unpacked before the first kernel, and all KV but that of the step's own tokens is from
// steps before: a block begins to read it before it waits for the kernels before it.
// There it may also do what rope_kv.cu does for the step's own tokens (fused.cuh).
// Source: FlashDecoding's split; PersistentKV's row-local shares.
#include "kernels/cuda/attention_slices.cuh"
#include "kernels/cuda/rope.cuh"

template <int HD> struct decode_shape : slice_shape<HD, HD == 64 ? 4 : 2> {
  using base = slice_shape<HD, HD == 64 ? 4 : 2>;
  static constexpr int SMEM_BYTES = 1024 + WARPS * base::WARP_BYTES; // and room to align
  static_assert(WARPS * 16 * (HD + 2) * 4 <= WARPS * base::WARP_BYTES + 1024, "finish_decode needs this");
};

#ifdef TD_HAS_MBARRIER
// Rotated queries of the item to shared memory; of the item that holds the row's last token, that token's K and V to its page.
template <int HD>
__device__ __forceinline__ void rotate_item(const attention_args &a, const decode_rotation &by, const device_batch &batch,
                                            const td_attention_item &it, const td_plan_row &row, uint32_t kv_head, bf16 *queries,
                                            const float2 *turns)
{
  constexpr uint32_t LANES = HD / 16, STRIDE = HD + 8;
  uint32_t lane = threadIdx.x % LANES, pos = row.kv_len - 1, line = pos & (batch.page_tokens - 1);
  uint32_t n_heads = a.group + (it.kv_end == row.kv_len ? 2 : 0), n_all = a.n_heads + 2 * a.n_kv_heads;
  uint32_t chunk[2] = {first_chunk(lane, by.halves), second_chunk(lane, HD, by.halves)};
  size_t half_page = (size_t)batch.page_tokens * HD;
  for (uint32_t h = threadIdx.x / LANES; h < n_heads; h += WARPS * 32 / LANES) {
    bool is_q = h < a.group, is_v = h == a.group + 1;
    uint32_t head = is_q ? kv_head * a.group + h : a.n_heads + (is_v ? a.n_kv_heads : 0) + kv_head;
    const bf16 *src = a.qkv + ((size_t)row.q_start * n_all + head) * HD;
    bf16x8 raw[2];
    float v[2][8];
#pragma unroll
    for (int c = 0; c < 2; c++) {
      *(uint4 *)&raw[c] = __ldcg((const uint4 *)(src + chunk[c] * 8));
      unpack(raw[c], v[c]);
    }
    if (!is_v)
      rotate(v, turns, chunk[0], by.halves);
    bf16 *page = (bf16 *)a.kv + ((size_t)batch.page_table[row.page_table_offset + (pos >> log2_of(batch.page_tokens))] * a.n_kv_heads + kv_head) * 2 *
                                    half_page;
#pragma unroll
    for (int c = 0; c < 2; c++) {
      bf16 *dst = is_q ? queries + h * STRIDE + chunk[c] * 8 : page + (is_v ? half_page : 0) + kv_chunk_at(HD, line, chunk[c]);
      *(bf16x8 *)dst = is_v ? raw[c] : pack(v[c]);
    }
  }
}

template <int HD> __device__ __forceinline__ void take_queries(uint32_t q[HD / 16][4], const bf16 *queries, uint32_t n_rows)
{
  uint32_t lane = threadIdx.x % 32;
  const bf16 *src[2];
  for (int h = 0; h < 2; h++)
    src[h] = queries + min(lane / 4 + 8 * h, n_rows - 1) * (HD + 8); // rows past the end repeat the last and are dropped
#pragma unroll
  for (int c = 0; c < HD / 16; c++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      q[c][e] = *(const uint32_t *)(src[e % 2] + c * 16 + (e / 2) * 8 + 2 * (lane % 4));
}
#endif

// ROTATES: queries, keys and values are as the product left them. Then every row has one token, and the step is recorded.
template <int HD, bool ROTATES>
__global__ void __launch_bounds__(WARPS * 32)
    decode_kernel(attention_args a, decode_rotation by, device_batch batch, const td_attention_item *items, uint32_t first, bool recorded)
{
#ifdef TD_HAS_MBARRIER
  using S = decode_shape<HD>;
  extern __shared__ unsigned char smem_raw[];
  __shared__ uint64_t barriers[WARPS * S::DEPTH];
  __shared__ __align__(16) bf16 queries[ROTATES ? TD_DECODE_ROWS * (HD + 8) : 8];
  __shared__ float2 turns[ROTATES ? HD / 2 : 1];
  unsigned char *smem_all = smem_raw + (1024 - shared_address(smem_raw) % 1024) % 1024;
  let_next_start();
  if (!recorded)
    wait_for_input();
  // blocks begin in the order of their numbers: a recorded step's that have no item come last
  uint32_t item = first + blockIdx.x / a.n_kv_heads, kv_head = blockIdx.x % a.n_kv_heads;
  if (item >= batch.counts[COUNT_ITEMS]) {
    wait_for_input();
    return;
  }
  const td_attention_item it = items[item];
  const td_plan_row row = batch.rows[it.row];
  uint32_t n_old = row.kv_len - row.q_len; // tokens of the steps before
  slice_stream<HD, S::DEPTH> in;
  in.open(a, batch, it, row, kv_head);
  in.make_ring(shared_address(smem_all), shared_address(barriers));
  uint32_t n_copied = fill_ring(in, 0, n_old), q[HD / 16][4];
  if constexpr (ROTATES)
    for (uint32_t i = threadIdx.x; i < HD / 2; i += WARPS * 32)
      turns[i] = turn_of((int32_t)n_old, by.inv_freq[i], by.attn_factor);
  wait_for_input();
  if constexpr (ROTATES) {
    __syncthreads();
    rotate_item<HD>(a, by, batch, it, row, kv_head, queries, turns);
    fence_global_writes(); // the token's line is read by asynchronous copies
    __syncthreads();
  }
  n_copied = fill_ring(in, n_copied, UINT32_MAX);
  if constexpr (ROTATES)
    take_queries<HD>(q, queries, a.group);
  else
    load_queries<HD>(q, a, it, row, kv_head, 0);
  warp_state<HD> st;
  clear(st);
  attend_slices(st, in, n_copied, q, a, it, (int32_t)(n_old + it.token_begin));
  __syncthreads(); // no ring is in use any more
  finish_decode<HD>(st, a, it, row, kv_head, (float *)smem_all);
#endif
}

template <int HD, bool ROTATES>
static void launch(cuda_backend *b, const attention_args &a, const decode_rotation &by, uint32_t first, uint32_t n_items)
{
  static bool sized = false; // the attribute is per kernel, for the life of the process
  auto kernel = decode_kernel<HD, ROTATES>;
  if (!sized) {
    note(b, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, decode_shape<HD>::SMEM_BYTES));
    sized = true;
  }
  queue_kernel(b, kernel, dim3(n_items * a.n_kv_heads), WARPS * 32, decode_shape<HD>::SMEM_BYTES, a, by, b->batch,
               (const td_attention_item *)b->device_items, first, b->padded_decode);
}

template <bool ROTATES>
static void launch_for(cuda_backend *b, const attention_args &a, const decode_rotation &by, uint32_t head_dim, uint32_t first,
                       uint32_t n_items)
{
  switch (head_dim) { // td_cuda_has_wgmma_attention said so
  case 64: launch<64, ROTATES>(b, a, by, first, n_items); break;
  case 128: launch<128, ROTATES>(b, a, by, first, n_items); break;
  case 256: launch<256, ROTATES>(b, a, by, first, n_items); break;
  default: TD_BUG_ON(true);
  }
}

void td_cuda_decode_attention(cuda_backend *b, const attention_args &a, uint32_t head_dim, uint32_t first, uint32_t n_items)
{
  launch_for<false>(b, a, {}, head_dim, first, n_items);
}

void td_cuda_decode_rotated(cuda_backend *b, const attention_args &a, const decode_rotation &by, uint32_t head_dim, uint32_t n_items)
{
  TD_BUG_ON(!b->padded_decode || a.group > TD_DECODE_ROWS);
  launch_for<true>(b, a, by, head_dim, 0, n_items);
}
