// Paged attention for hybrid batches: every row of the plan in one launch, prefill chunks and decodes alike.
//
// A block takes a tile of queries of one row and one kv head: tokens x the heads of the GQA group, packed as rows of
// one matrix product. K and V tiles of 64 tokens come through shared memory, double buffered. In a prefill tile (64 packed rows) each of
// the four warps owns 16 rows; in a decode tile (16 packed rows) all warps own the same rows and each takes a quarter of
// every K/V tile, merged at the end. Long decodes are split over blocks, and the last block of a row to arrive merges.
// Source: FlashAttention-2's loop, FlashDecoding's split.
#include "kernels/cuda/attention.cuh"

enum { WARPS = 4, KV_TILE = 64 };

__device__ __forceinline__ uint32_t smem_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy_async_16(uint32_t dst, const void *src, bool real)
{
  // zero-fills when not real: V lines past the end must not be NaN
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(real ? 16 : 0));
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], uint32_t addr)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr));
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], uint32_t addr)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr));
}

__device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
  __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *(uint32_t *)&v;
}

template <int HD> struct tile_shape {
  static constexpr int CHUNKS = HD / 8;                                              // 16-byte chunks of a line
  static constexpr int STRIDE_CHUNKS = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32;     // power of two: the swizzle stays inside
  static constexpr int TILE_BYTES = KV_TILE * STRIDE_CHUNKS * 16;
  static constexpr int SMEM_BYTES = 4 * TILE_BYTES; // K and V, two stages
};

template <int HD> __device__ __forceinline__ uint32_t line_address(uint32_t base, uint32_t line, uint32_t chunk)
{
  return base + line * tile_shape<HD>::STRIDE_CHUNKS * 16 + ((chunk ^ (line & 7)) * 16);
}

// Starts the copy of K and V of tokens [kv0, kv0 + 64); lines at or past kv_end are zero.
template <int HD>
__device__ __forceinline__ void load_tile(uint32_t smem, const bf16 *kv, const int32_t *pages, uint32_t page_tokens,
                                          uint32_t n_kv_heads, uint32_t kv_head, uint32_t kv0, uint32_t kv_end)
{
  constexpr int C = tile_shape<HD>::CHUNKS;
  for (int i = threadIdx.x; i < KV_TILE * C; i += WARPS * 32) {
    uint32_t line = i / C, chunk = i % C, token = kv0 + line;
    bool real = token < kv_end;
    uint32_t safe = real ? token : kv0;
    size_t base = ((size_t)pages[safe / page_tokens] * n_kv_heads + kv_head) * 2 * page_tokens * HD;
    const bf16 *k = kv + base + kv_chunk_at(HD, safe % page_tokens, chunk);
    copy_async_16(line_address<HD>(smem, line, chunk), k, real);
    copy_async_16(line_address<HD>(smem + tile_shape<HD>::TILE_BYTES, line, chunk), k + (size_t)page_tokens * HD, real);
  }
  asm volatile("cp.async.commit_group;");
}

// One warp's share of the tile: 16 packed rows against COLS tokens that begin at column col0 of the tile.
template <int HD, int COLS> struct warp_state {
  float o[HD / 8][4], m[2], l[2];
};

template <int HD, int COLS>
__device__ __forceinline__ void process_tile(warp_state<HD, COLS> &st, const uint32_t q[HD / 16][4], uint32_t smem_k,
                                             uint32_t col0, uint32_t kv0, int32_t pos_lo, int32_t pos_hi,
                                             const attention_args &a)
{
  uint32_t lane = threadIdx.x % 32, t = lane % 4;
  uint32_t smem_v = smem_k + tile_shape<HD>::TILE_BYTES;
  float s[COLS / 8][4];
#pragma unroll
  for (int j = 0; j < COLS / 8; j++)
    s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
  for (int c = 0; c < HD / 16; c++)
#pragma unroll
    for (int j = 0; j < COLS / 16; j++) {
      // four 8x8 matrices: tokens 0-7 and 8-15 of the pair, k halves 0 and 1
      uint32_t r[4], line = col0 + j * 16 + (lane / 16) * 8 + lane % 8;
      ldmatrix_x4(r, line_address<HD>(smem_k, line, c * 2 + (lane / 8) % 2));
      mma(s[2 * j], q[c], r[0], r[1]);
      mma(s[2 * j + 1], q[c], r[2], r[3]);
    }
  float mx[2] = {st.m[0], st.m[1]};
#pragma unroll
  for (int j = 0; j < COLS / 8; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int32_t key = (int32_t)(kv0 + col0 + j * 8 + 2 * t + (e & 1)), pos = e < 2 ? pos_lo : pos_hi;
      bool seen = key <= pos && (a.window == 0 || key > pos - (int32_t)a.window);
      s[j][e] = seen ? s[j][e] * a.scale_log2 : -INFINITY;
      mx[e / 2] = fmaxf(mx[e / 2], s[j][e]);
    }
  float corr[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    mx[h] = fmaxf(mx[h], __shfl_xor_sync(0xffffffffu, mx[h], 1));
    mx[h] = fmaxf(mx[h], __shfl_xor_sync(0xffffffffu, mx[h], 2));
    float safe = mx[h] == -INFINITY ? 0 : mx[h];
    corr[h] = exp2f(st.m[h] - safe); // 0 while nothing was seen
    st.m[h] = mx[h];
    mx[h] = safe;
    st.l[h] *= corr[h];
  }
#pragma unroll
  for (int j = 0; j < COLS / 8; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      s[j][e] = exp2f(s[j][e] - mx[e / 2]);
      st.l[e / 2] += s[j][e];
    }
#pragma unroll
  for (int d = 0; d < HD / 8; d++) {
    st.o[d][0] *= corr[0];
    st.o[d][1] *= corr[0];
    st.o[d][2] *= corr[1];
    st.o[d][3] *= corr[1];
  }
#pragma unroll
  for (int j = 0; j < COLS / 16; j++) {
    uint32_t p[4] = {pack2(s[2 * j][0], s[2 * j][1]), pack2(s[2 * j][2], s[2 * j][3]),
                     pack2(s[2 * j + 1][0], s[2 * j + 1][1]), pack2(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
    for (int d = 0; d < HD / 16; d++) {
      // tokens 0-7 and 8-15 (k halves), head-dim chunks 2d and 2d + 1
      uint32_t r[4], line = col0 + j * 16 + (lane / 8) % 2 * 8 + lane % 8;
      ldmatrix_x4_trans(r, line_address<HD>(smem_v, line, d * 2 + lane / 16));
      mma(st.o[2 * d], p, r[0], r[1]);
      mma(st.o[2 * d + 1], p, r[2], r[3]);
    }
  }
}

// Writes packed row p of the item, from the lanes that hold it: final output, or a partial for the merge.
template <int HD>
__device__ __forceinline__ void store_row(const attention_args &a, const td_attention_item &it, const td_plan_row &row,
                                          uint32_t kv_head, uint32_t p, float m, float l, const float *o_pairs)
{
  uint32_t t = threadIdx.x % 4;
  if (p >= it.n_tokens * a.group)
    return;
  if (it.n_partials > 1) {
    float *dst = a.partials + ((size_t)(it.partial * a.n_kv_heads + kv_head) * TD_DECODE_ROWS + p) * (HD + 4);
    for (int d = 0; d < HD / 8; d++) {
      dst[d * 8 + 2 * t] = o_pairs[2 * d];
      dst[d * 8 + 2 * t + 1] = o_pairs[2 * d + 1];
    }
    if (t == 0) {
      dst[HD] = m;
      dst[HD + 1] = l;
    }
    return;
  }
  uint32_t token = row.q_start + it.token_begin + p / a.group, head = kv_head * a.group + p % a.group;
  bf16 *dst = a.out + ((size_t)token * a.n_heads + head) * HD;
  float inv = l > 0 ? 1.0f / l : 0.0f;
  for (int d = 0; d < HD / 8; d++)
    *(__nv_bfloat162 *)(dst + d * 8 + 2 * t) = __floats2bfloat162_rn(o_pairs[2 * d] * inv, o_pairs[2 * d + 1] * inv);
}

template <int HD>
__device__ __forceinline__ void load_queries(uint32_t q[HD / 16][4], const attention_args &a, const td_attention_item &it,
                                             const td_plan_row &row, uint32_t kv_head, uint32_t p0)
{
  uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t stride = (a.n_heads + 2 * a.n_kv_heads) * HD, last = it.n_tokens * a.group - 1;
  const bf16 *src[2];
  for (int h = 0; h < 2; h++) {
    uint32_t p = min(p0 + g + 8 * h, last); // rows past the end repeat the last and are dropped
    src[h] = a.qkv + (size_t)(row.q_start + it.token_begin + p / a.group) * stride + (kv_head * a.group + p % a.group) * HD;
  }
#pragma unroll
  for (int c = 0; c < HD / 16; c++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      q[c][e] = *(const uint32_t *)(src[e % 2] + c * 16 + (e / 2) * 8 + 2 * t);
}

// Whether this block is the last of its row's shares; what the others wrote can then be read.
__device__ __forceinline__ bool arrives_last(const attention_args &a, const td_attention_item &it, uint32_t kv_head)
{
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t *n = a.arrived + it.first_partial * a.n_kv_heads + kv_head;
    last = atomicAdd(n, 1) == it.n_partials - 1;
    if (last)
      *n = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// The shares of a split row, in their order whoever does it. A warp takes a packed row, a lane HD / 32 of its elements.
template <int HD>
__device__ __forceinline__ void merge_partials(const attention_args &a, const td_attention_item &it, const td_plan_row &row,
                                               uint32_t kv_head)
{
  constexpr int PER_LANE = HD / 32;
  uint32_t lane = threadIdx.x % 32;
  size_t stride = (size_t)a.n_kv_heads * TD_DECODE_ROWS * (HD + 4);
  for (uint32_t p = threadIdx.x / 32; p < it.n_tokens * a.group; p += WARPS) {
    const float *part = a.partials + ((size_t)(it.first_partial * a.n_kv_heads + kv_head) * TD_DECODE_ROWS + p) * (HD + 4);
    float m = -INFINITY, l = 0, o[PER_LANE] = {};
    for (uint32_t i = lane; i < it.n_partials; i += 32)
      m = fmaxf(m, __ldcg(part + i * stride + HD));
    m = warp_max(m);
    float safe = m == -INFINITY ? 0 : m;
#pragma unroll 8
    for (uint32_t i = 0; i < it.n_partials; i++) {
      const float *r = part + i * stride;
      float f = exp2f(__ldcg(r + HD) - safe);
      l += __ldcg(r + HD + 1) * f;
#pragma unroll
      for (int k = 0; k < PER_LANE; k++)
        o[k] += __ldcg(r + k * 32 + lane) * f;
    }
    uint32_t token = row.q_start + p / a.group, head = kv_head * a.group + p % a.group;
    bf16 *dst = a.out + ((size_t)token * a.n_heads + head) * HD;
    for (int k = 0; k < PER_LANE; k++)
      dst[k * 32 + lane] = __float2bfloat16(l > 0 ? o[k] / l : 0.0f);
  }
}

template <int HD, int COLS>
__device__ __forceinline__ void run_item(const attention_args &a, const device_batch &batch, const td_attention_item &it,
                                         uint32_t kv_head, unsigned char *smem_raw)
{
  constexpr bool DECODE = COLS == KV_TILE / WARPS;
  const td_plan_row row = batch.rows[it.row];
  const int32_t *pages = batch.page_table + row.page_table_offset;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  uint32_t p0 = DECODE ? 0 : warp * 16, col0 = DECODE ? warp * COLS : 0;
  uint32_t smem = smem_address(smem_raw);
  int32_t first_pos = (int32_t)(row.kv_len - row.q_len + it.token_begin);
  uint32_t last = it.n_tokens * a.group - 1;
  int32_t pos_lo = first_pos + (int32_t)(min(p0 + g, last) / a.group);
  int32_t pos_hi = first_pos + (int32_t)(min(p0 + g + 8, last) / a.group);
  uint32_t kv_begin = it.kv_begin;
  if (a.window > 0 && first_pos + 1 > (int32_t)a.window)
    kv_begin = max(kv_begin, ((uint32_t)first_pos + 1 - a.window) / KV_TILE * KV_TILE);
  uint32_t q[HD / 16][4];
  load_queries<HD>(q, a, it, row, kv_head, p0);
  warp_state<HD, COLS> st;
#pragma unroll
  for (int d = 0; d < HD / 8; d++)
    st.o[d][0] = st.o[d][1] = st.o[d][2] = st.o[d][3] = 0;
  st.m[0] = st.m[1] = -INFINITY;
  st.l[0] = st.l[1] = 0;

  uint32_t stage = 0;
  if (kv_begin < it.kv_end)
    load_tile<HD>(smem, a.kv, pages, batch.page_tokens, a.n_kv_heads, kv_head, kv_begin, it.kv_end);
  for (uint32_t kv0 = kv_begin; kv0 < it.kv_end; kv0 += KV_TILE, stage ^= 1) {
    if (kv0 + KV_TILE < it.kv_end) {
      load_tile<HD>(smem + (stage ^ 1) * 2 * tile_shape<HD>::TILE_BYTES, a.kv, pages, batch.page_tokens, a.n_kv_heads,
                    kv_head, kv0 + KV_TILE, it.kv_end);
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_group 0;");
    }
    __syncthreads();
    process_tile<HD, COLS>(st, q, smem + stage * 2 * tile_shape<HD>::TILE_BYTES, col0, kv0, pos_lo, pos_hi, a);
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < 2; h++) { // l was summed over this lane's columns only
    st.l[h] += __shfl_xor_sync(0xffffffffu, st.l[h], 1);
    st.l[h] += __shfl_xor_sync(0xffffffffu, st.l[h], 2);
  }
  if (DECODE) { // merge the warps' states through shared memory, pairwise sums in warp order
    float *all = (float *)smem_raw; // [WARPS][16][HD + 2]
    float *mine = all + (size_t)warp * 16 * (HD + 2);
    for (int h = 0; h < 2; h++) {
      float *r = mine + (g + 8 * h) * (HD + 2);
      for (int d = 0; d < HD / 8; d++) {
        r[d * 8 + 2 * (lane % 4)] = st.o[d][2 * h];
        r[d * 8 + 2 * (lane % 4) + 1] = st.o[d][2 * h + 1];
      }
      r[HD] = st.m[h];
      r[HD + 1] = st.l[h];
    }
    __syncthreads();
    for (int h = 0; h < 2 && warp == 0; h++) {
      float m = -INFINITY, l = 0, o[HD / 4];
      for (int w = 0; w < WARPS; w++)
        m = fmaxf(m, all[((size_t)w * 16 + g + 8 * h) * (HD + 2) + HD]);
      float safe = m == -INFINITY ? 0 : m;
      for (int d = 0; d < HD / 4; d++)
        o[d] = 0;
      for (int w = 0; w < WARPS; w++) {
        const float *r = all + ((size_t)w * 16 + g + 8 * h) * (HD + 2);
        float f = exp2f(r[HD] - safe);
        l += r[HD + 1] * f;
        for (int d = 0; d < HD / 8; d++) {
          o[2 * d] += r[d * 8 + 2 * (lane % 4)] * f;
          o[2 * d + 1] += r[d * 8 + 2 * (lane % 4) + 1] * f;
        }
      }
      store_row<HD>(a, it, row, kv_head, g + 8 * h, m, l, o);
    }
    if (it.n_partials > 1 && arrives_last(a, it, kv_head))
      merge_partials<HD>(a, it, row, kv_head);
  } else {
    for (int h = 0; h < 2; h++) {
      float o[HD / 4];
#pragma unroll
      for (int d = 0; d < HD / 8; d++) {
        o[2 * d] = st.o[d][2 * h];
        o[2 * d + 1] = st.o[d][2 * h + 1];
      }
      store_row<HD>(a, it, row, kv_head, p0 + g + 8 * h, st.m[h], st.l[h], o);
    }
  }
}

template <int HD>
__global__ void __launch_bounds__(WARPS * 32)
    attention_kernel(attention_args a, device_batch batch, const td_attention_item *items, uint32_t first)
{
  extern __shared__ __align__(128) unsigned char smem_raw[];
  let_next_start();
  wait_for_input();
  if (first + blockIdx.x >= batch.counts[COUNT_ITEMS])
    return;
  td_attention_item it = items[first + blockIdx.x];
  if (it.n_partials > 0)
    run_item<HD, KV_TILE / WARPS>(a, batch, it, blockIdx.y, smem_raw);
  else
    run_item<HD, KV_TILE>(a, batch, it, blockIdx.y, smem_raw);
}

template <int HD> static void launch(cuda_backend *b, const attention_args &a, uint32_t first)
{
  static bool sized = false; // the attribute is per kernel, for the life of the process
  if (!sized) {
    note(b, cudaFuncSetAttribute(attention_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 tile_shape<HD>::SMEM_BYTES));
    sized = true;
  }
  uint32_t n_items = b->items.n_items - first;
  if (b->padded_decode && b->config.batch_invariant)
    n_items = b->plan->n_rows;
  else if (b->padded_decode)
    n_items = td_attention_decode_items_max(b->plan->n_rows, a.n_kv_heads, (uint32_t)b->n_sms);
  queue_kernel(b, attention_kernel<HD>, dim3(n_items, a.n_kv_heads), WARPS * 32, tile_shape<HD>::SMEM_BYTES, a, b->batch,
               (const td_attention_item *)b->device_items, first);
}

void td_cuda_attention(td_backend *be, const td_attention_params *p)
{
  cuda_backend *b = self(be);
  const td_kv_shape *s = &p->kv->shape;
  size_t layer_elements = (size_t)s->n_pages * s->n_kv_heads * 2 * s->page_tokens * s->head_dim;
  attention_args a = {at<bf16>(p->qkv), at<bf16>(p->out), p->kv->data + p->layer * layer_elements, b->partials, b->arrived,
                      p->scale * 1.4426950408889634f, p->window_tokens, p->n_heads, p->n_kv_heads,
                      p->n_heads / p->n_kv_heads};
  uint32_t first = 0; // items before it are served
  if (p->kv->wgmma && b->padded_decode && b->config.batch_invariant) {
    td_cuda_prefill_attention(b, a, p->head_dim, b->plan->n_rows);
    return;
  }
  if (p->kv->wgmma && !b->padded_decode && b->items.n_prefill > 0) {
    first = b->items.n_prefill;
    td_cuda_prefill_attention(b, a, p->head_dim, first);
    if (first == b->items.n_items)
      return;
  }
  switch (p->head_dim) { // others were refused by kv_create
  case 64: launch<64>(b, a, first); break;
  case 96: launch<96>(b, a, first); break;
  case 128: launch<128>(b, a, first); break;
  case 256: launch<256>(b, a, first); break;
  default: TD_BUG_ON(true);
  }
}
