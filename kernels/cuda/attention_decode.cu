// Attention of decodes on Hopper: every warp of a block streams its own slices of a row's pages through its own ring.
//
// A block takes an item (a decode row, or a share of a long one) and a kv head; its warps take slices of 16 tokens in turn, which
// asynchronous copies bring, K and V as they lie in the page. No warp waits for another before the end. So blocks are small, an
// SM holds several, and memory is kept busy while some of them begin or end.
// In a recorded step the plan has been unpacked before the first kernel, and all KV but that of the step's own tokens is from
// steps before: a block begins to read it before it waits for the kernels before it.
// Source: FlashDecoding's split; PersistentKV's row-local shares.
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/mbarrier.cuh"

enum { SLICE_TOKENS = 16 };

template <int HD> struct decode_shape {
  static constexpr int SLICE_BYTES = SLICE_TOKENS * HD * 2; // of K, or of V
  static constexpr int DEPTH = HD == 64 ? 4 : 2;            // slices of a warp's ring
  static constexpr int WARP_BYTES = DEPTH * 2 * SLICE_BYTES;
  static constexpr int SMEM_BYTES = 1024 + WARPS * WARP_BYTES; // and room to align
  static_assert(WARPS * 16 * (HD + 2) * 4 <= WARPS * WARP_BYTES + 1024, "finish_decode needs this");
};

#ifdef TD_HAS_MBARRIER
// What a warp reads: slices warp, warp + WARPS, ... of the item's keys.
template <int HD> struct slice_stream {
  using S = decode_shape<HD>;
  const bf16 *kv; // of the kv head in page 0
  const int32_t *pages;
  size_t page_stride;
  uint32_t page_tokens, token0, n; // first slice's token; slices
  uint32_t smem, bars;
  int32_t page_id; // lane i: the page of slice i of the current 32

  __device__ __forceinline__ uint32_t token(uint32_t i) const { return token0 + i * WARPS * SLICE_TOKENS; }

  __device__ __forceinline__ void look_up(uint32_t i0)
  {
    uint32_t i = i0 + threadIdx.x % 32;
    page_id = i < n ? pages[token(i) / page_tokens] : 0;
  }

  // Slices are copied in order: i is 0, 1, ...
  __device__ __forceinline__ void copy(uint32_t i)
  {
    if (i > 0 && i % 32 == 0)
      look_up(i);
    int32_t page = __shfl_sync(0xffffffffu, page_id, i % 32);
    uint32_t lane = threadIdx.x % 32, stage = i % S::DEPTH, line = token(i) % page_tokens;
    if (lane == 0)
      barrier_expect(bars + stage * 8, 2 * S::SLICE_BYTES);
    if (lane < 2) { // K, V
      const bf16 *src = kv + (size_t)page * page_stride + (size_t)(lane * page_tokens + line) * HD;
      copy_bulk(smem + (stage * 2 + lane) * S::SLICE_BYTES, src, S::SLICE_BYTES, bars + stage * 8);
    }
  }
};

// Lines at or past n_lines: not NaN, because their weight of zero would not remove that.
template <int HD> __device__ __forceinline__ void zero_values(uint32_t smem_v, uint32_t n_lines)
{
  for (uint32_t i = n_lines * (HD / 8) + threadIdx.x % 32; i < SLICE_TOKENS * (HD / 8); i += 32)
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(page_lines<HD>::at(smem_v, i / (HD / 8), i % (HD / 8))), "r"(0)
                 : "memory");
  __syncwarp();
}
#endif

template <int HD>
__global__ void __launch_bounds__(WARPS * 32)
    decode_kernel(attention_args a, device_batch batch, const td_attention_item *items, uint32_t first, bool recorded)
{
#ifdef TD_HAS_MBARRIER
  using S = decode_shape<HD>;
  extern __shared__ unsigned char smem_raw[];
  __shared__ uint64_t barriers[WARPS * S::DEPTH];
  unsigned char *smem_all = smem_raw + (1024 - shared_address(smem_raw) % 1024) % 1024;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  let_next_start();
  if (!recorded)
    wait_for_input();
  if (first + blockIdx.x >= batch.counts[COUNT_ITEMS]) {
    wait_for_input();
    return;
  }
  const td_attention_item it = items[first + blockIdx.x];
  const td_plan_row row = batch.rows[it.row];
  uint32_t kv_head = blockIdx.y, kv_begin = it.kv_begin, n_old = row.kv_len - row.q_len; // tokens of the steps before
  int32_t first_pos = (int32_t)(n_old + it.token_begin);
  if (a.window > 0 && first_pos + 1 > (int32_t)a.window)
    kv_begin = max(kv_begin, ((uint32_t)first_pos + 1 - a.window) / SLICE_TOKENS * SLICE_TOKENS);
  slice_stream<HD> in;
  size_t half = (size_t)batch.page_tokens * HD;
  in.kv = a.kv + kv_head * 2 * half;
  in.pages = batch.page_table + row.page_table_offset;
  in.page_stride = half * 2 * a.n_kv_heads;
  in.page_tokens = batch.page_tokens;
  in.token0 = kv_begin + warp * SLICE_TOKENS;
  in.n = in.token0 < it.kv_end ? (it.kv_end - in.token0 + WARPS * SLICE_TOKENS - 1) / (WARPS * SLICE_TOKENS) : 0;
  in.smem = shared_address(smem_all) + warp * S::WARP_BYTES;
  in.bars = shared_address(barriers) + warp * S::DEPTH * 8;
  in.look_up(0);
  if (lane == 0) {
    for (int i = 0; i < S::DEPTH; i++)
      barrier_init(in.bars + i * 8, 1);
    barriers_made();
  }
  __syncwarp();
  uint32_t n_copied = 0;
  fence_global_writes(); // pages were written by ordinary stores
  while (n_copied < min(in.n, S::DEPTH) && in.token(n_copied) + SLICE_TOKENS <= n_old)
    in.copy(n_copied++);
  wait_for_input();
  fence_global_writes();
  while (n_copied < min(in.n, S::DEPTH))
    in.copy(n_copied++);

  uint32_t last = it.n_tokens * a.group - 1, q[HD / 16][4];
  int32_t pos_lo = first_pos + (int32_t)(min(lane / 4, last) / a.group), pos_hi = first_pos + (int32_t)(min(lane / 4 + 8, last) / a.group);
  load_queries<HD>(q, a, it, row, kv_head, 0);
  warp_state<HD> st;
  clear(st);
  for (uint32_t i = 0; i < in.n; i++) {
    uint32_t stage = i % S::DEPTH, smem_k = in.smem + stage * 2 * S::SLICE_BYTES, token = in.token(i);
    barrier_wait(in.bars + stage * 8, i / S::DEPTH & 1);
    if (token + SLICE_TOKENS > it.kv_end)
      zero_values<HD>(smem_k + S::SLICE_BYTES, it.kv_end - token);
    process_tile<HD, SLICE_TOKENS, page_lines>(st, q, smem_k, smem_k + S::SLICE_BYTES, 0, token, pos_lo, pos_hi, a);
    __syncwarp();
    if (n_copied < in.n)
      in.copy(n_copied++);
  }
  finish_sums(st);
  __syncthreads(); // no ring is in use any more
  finish_decode<HD>(st, a, it, row, kv_head, (float *)smem_all);
#endif
}

template <int HD>
static void launch(cuda_backend *b, const attention_args &a, uint32_t first, uint32_t n_items)
{
  static bool sized = false; // the attribute is per kernel, for the life of the process
  if (!sized) {
    note(b, cudaFuncSetAttribute(decode_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, decode_shape<HD>::SMEM_BYTES));
    sized = true;
  }
  queue_kernel(b, decode_kernel<HD>, dim3(n_items, a.n_kv_heads), WARPS * 32, decode_shape<HD>::SMEM_BYTES, a, b->batch,
               (const td_attention_item *)b->device_items, first, b->padded_decode);
}

void td_cuda_decode_attention(cuda_backend *b, const attention_args &a, uint32_t head_dim, uint32_t first, uint32_t n_items)
{
  switch (head_dim) { // td_cuda_has_wgmma_attention said so
  case 64: launch<64>(b, a, first, n_items); break;
  case 128: launch<128>(b, a, first, n_items); break;
  case 256: launch<256>(b, a, first, n_items); break;
  default: TD_BUG_ON(true);
  }
}
