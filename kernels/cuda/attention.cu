// Paged attention for hybrid steps: one launch computes every row of the plan, prefill chunks and decodes
// alike.
//
// A CTA takes a tile of query rows of one sequence and one kv head: tokens x heads of the GQA group. KV tiles
// of 64 tokens go through shared memory, double buffered. In a prefill tile (64 query rows) each of the four
// warps has 16 rows. In a decode tile (16 query rows) all warps have the same rows; each takes a quarter of
// every KV tile, and the epilogue adds their sums. Long decodes are divided into KV splits. On Hopper
// attention_prefill.cu and attention_decode.cu serve most head sizes instead. Source: FlashAttention-2's
// loop, FlashDecoding's split.
#include "kernels/cuda/attention_epilogue.cuh"

enum { KV_TILE = 64 };

__device__ __forceinline__ void copy_async_16(uint32_t dst, const void *src, bool real)
{
  // fills with zeros if not real: V lines past the end must not be NaN
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(real ? 16 : 0));
}

template <int HD> struct tile_shape {
  static constexpr int TILE_BYTES = KV_TILE * padded_lines<HD>::STRIDE_CHUNKS * 16;
  static constexpr int SMEM_BYTES = 4 * TILE_BYTES; // two stages of K and V
};

// Starts copying K and V of tokens [kv0, kv0 + 64). Lines from kv_end on are zeroed.
template <int HD>
__device__ __forceinline__ void load_tile(uint32_t smem, const bf16 *kv, const int32_t *pages,
                                          uint32_t page_tokens, uint32_t n_kv_heads, uint32_t kv_head,
                                          uint32_t kv0, uint32_t kv_end)
{
  constexpr int C = padded_lines<HD>::CHUNKS;
  for (int i = threadIdx.x; i < KV_TILE * C; i += WARPS * 32) {
    uint32_t line = i / C, chunk = i % C, token = kv0 + line;
    bool real = token < kv_end;
    uint32_t safe = real ? token : kv0;
    size_t base = ((size_t)pages[safe / page_tokens] * n_kv_heads + kv_head) * 2 * page_tokens * HD;
    const bf16 *k = kv + base + kv_chunk_at(HD, safe % page_tokens, chunk);
    copy_async_16(padded_lines<HD>::at(smem, line, chunk), k, real);
    copy_async_16(padded_lines<HD>::at(smem + tile_shape<HD>::TILE_BYTES, line, chunk),
                  k + (size_t)page_tokens * HD, real);
  }
  asm volatile("cp.async.commit_group;");
}

template <int HD, int COLS>
__device__ __forceinline__ void run_item(const attention_args &a, const device_batch &batch,
                                         const td_attention_item &it, uint32_t kv_head,
                                         unsigned char *smem_raw)
{
  constexpr bool DECODE = COLS == KV_TILE / WARPS;
  const int32_t *pages = batch.page_table + it.page_table_offset;
  uint32_t warp = threadIdx.x / 32;
  uint32_t p0 = DECODE ? 0 : warp * 16, col0 = DECODE ? warp * COLS : 0;
  uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_raw);
  const query_positions pos = positions_of(it, a, p0);
  uint32_t kv_begin = it.kv_begin;
  if (a.window > 0 && it.position + 1 > a.window)
    kv_begin = max(kv_begin, (it.position + 1 - a.window) / KV_TILE * KV_TILE);
  uint32_t q[HD / 16][4];
  load_queries<HD>(q, a, it, kv_head, p0);
  warp_state<HD> st;
  clear(st);

  uint32_t stage = 0;
  if (kv_begin < it.kv_end)
    load_tile<HD>(smem, a.kv, pages, batch.page_tokens, a.n_kv_heads, kv_head, kv_begin, it.kv_end);
  for (uint32_t kv0 = kv_begin; kv0 < it.kv_end; kv0 += KV_TILE, stage ^= 1) {
    if (kv0 + KV_TILE < it.kv_end) {
      load_tile<HD>(smem + (stage ^ 1) * 2 * tile_shape<HD>::TILE_BYTES, a.kv, pages, batch.page_tokens,
                    a.n_kv_heads, kv_head, kv0 + KV_TILE, it.kv_end);
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_group 0;");
    }
    __syncthreads();
    uint32_t smem_k = smem + stage * 2 * tile_shape<HD>::TILE_BYTES;
    attend_tile<HD, COLS, padded_lines>(st, q, smem_k, smem_k + tile_shape<HD>::TILE_BYTES, col0, kv0, pos,
                                        a);
    __syncthreads();
  }
  reduce_lanes(st);
  if constexpr (DECODE) {
    reduce_cta<HD>(st, a, it, kv_head, (float *)smem_raw);
  } else {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t lane = threadIdx.x % 32, p = p0 + lane / 4 + 8 * h;
      if (p >= it.n_tokens * a.gqa_group)
        continue;
      bf16 *dst = output_of(a, it, kv_head, p, HD) + 2 * (lane % 4);
      float inv = divided(1, st.l[h]);
#pragma unroll
      for (int d = 0; d < HD / 8; d++)
        *(uint32_t *)(dst + d * 8) = pack2(st.o[d][2 * h] * inv, st.o[d][2 * h + 1] * inv);
    }
  }
}

template <int HD>
__global__ void __launch_bounds__(WARPS * 32)
    attention_kernel(attention_args a, device_batch batch, const td_attention_item *items)
{
  extern __shared__ __align__(128) unsigned char smem_raw[];
  pdl_launch_dependents();
  pdl_wait();
  if (blockIdx.x >= batch.counts[COUNT_ITEMS])
    return;
  td_attention_item it = items[blockIdx.x];
  if (it.n_partials > 0)
    run_item<HD, KV_TILE / WARPS>(a, batch, it, blockIdx.y, smem_raw);
  else
    run_item<HD, KV_TILE>(a, batch, it, blockIdx.y, smem_raw);
}

template <int HD>
static void launch(cuda_backend *b, const attention_group *g, const attention_args &a, uint32_t n_items)
{
  queue_kernel(&b->device, attention_kernel<HD>, dim3(n_items, a.n_kv_heads), WARPS * 32,
               tile_shape<HD>::SMEM_BYTES, a, td_cuda_group_batch(b, g),
               (const td_attention_item *)g->device_items);
}

template <int HD> static cudaError_t allow_smem()
{
  return cudaFuncSetAttribute(attention_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              tile_shape<HD>::SMEM_BYTES);
}

td_status td_cuda_attention_allow_smem(const attention_group *g, td_error *err)
{
  uint32_t head_dim = g->spec.head_dim;
  cudaError_t e = cudaSuccess;
  if (g->wgmma) {
    e = td_cuda_prefill_allow_smem(head_dim);
    e = e == cudaSuccess ? td_cuda_decode_allow_smem(head_dim) : e;
    e = e == cudaSuccess && colocated_rows(head_dim) > 0 ? td_cuda_colocated_allow_smem(head_dim) : e;
  } else {
    e = head_dim == 64    ? allow_smem<64>()
        : head_dim == 96  ? allow_smem<96>()
        : head_dim == 128 ? allow_smem<128>()
                          : allow_smem<256>();
  }
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "no shared memory for attention");
}

attention_args td_cuda_attention_args(const cuda_backend *b, const attention_group *g,
                                      const td_attention_params *p)
{
  bool beside = !is_capture(&b->attention) && g->work.prefill.sms_beside > 0;
  return {at<bf16>(p->qkv),
          at<bf16>(p->out),
          kv_layer(g, p->layer),
          g->split_partials,
          p->scale * 1.4426950408889634f,
          p->window_tokens,
          p->n_heads,
          p->n_kv_heads,
          p->n_heads / p->n_kv_heads,
          td_cuda_guaranteed_resident(beside ? g->work.prefill.sms_beside : (uint32_t)b->device.n_sms,
                                      p->n_kv_heads)};
}

void td_cuda_attention(cuda_backend *b, const td_attention_params *p, uint32_t n_rows)
{
  attention_group *g = cuda_kv_group(p->kv, p->kv_group);
  const attention_args a = td_cuda_attention_args(b, g, p);
  const attention_grid grid = td_cuda_attention_grid(b, g);
  if (g->wgmma) {
    if (grid.n_prefill_items > 0)
      td_cuda_prefill_attention(b, g, a, grid.n_prefill_items);
    if (is_colocated(b, g))
      td_cuda_colocated_leftovers(b, g, a, grid.n_prefill_items, grid.n_decode_ctas);
    else if (grid.n_decode_ctas > 0)
      td_cuda_decode_attention(b, g, a, grid.n_prefill_items, grid.n_decode_ctas);
    return;
  }
  switch (p->head_dim) { // kv_create rejected all others
  case 64: launch<64>(b, g, a, grid.n_prefill_items + grid.n_decode_ctas); break;
  case 96: launch<96>(b, g, a, grid.n_prefill_items + grid.n_decode_ctas); break;
  case 128: launch<128>(b, g, a, grid.n_prefill_items + grid.n_decode_ctas); break;
  case 256: launch<256>(b, g, a, grid.n_prefill_items + grid.n_decode_ctas); break;
  default: TD_BUG_ON(true);
  }
}
