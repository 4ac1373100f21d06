// Attention of prompt chunks on Hopper: the tensor cores fed from shared memory, the softmax of one half beside the products
// of the other.
//
// A work is 128 packed rows of one row and kv head: tokens x the heads of the GQA group. One block per SM goes through its share of
// the works. One warp of it copies whole pages of K and V into a ring of two tiles each, a work ahead where it can; they lie in
// memory as wgmma wants them (attention.cuh). Two warpgroups of 64 rows each take turns: while one's products of Q and K, and of P
// and V, are in the tensor cores, the other is at its softmax; and in each, the product of a tile's P and V runs beside the softmax
// of the next. Tiles are counted from position 0, so that a row sees the same tiles in the same order however its prompt was cut
// into chunks.
// Source: FlashAttention-3 (Shah et al. 2024, sections 3.1 and 3.2); PTX ISA on wgmma, mbarrier and cp.async.bulk.
#include "kernels/cuda/attention_wgmma.cuh"

#include <algorithm>

enum { CONSUMERS = 2, THREADS = WG * (1 + CONSUMERS), STAGES = 2, ROWS = TD_PREFILL_ROWS_WGMMA };
enum { PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240 };
enum { L2_KV_BYTES = 32 << 20 };

template <int HD> struct prefill_shape : key_tile<HD> {
  using key_tile<HD>::TILE_BYTES;
  static constexpr int Q_BYTES = ROWS * HD * 2;
  static constexpr int SMEM_BYTES = 1024 + Q_BYTES + 2 * STAGES * TILE_BYTES; // and room to align
};

// What the blocks go through: items x kv heads. Items come longest first, and of so many heads only before the next heads'
// turn that their K and V stay in the L2 cache.
struct prefill_works {
  const td_attention_item *items;
  uint32_t n_items, heads_at_once;
};

// Barriers, by their addresses; of the first four kinds there is one a stage.
enum { FULL_K, EMPTY_K, FULL_V, EMPTY_V, TAIL, BARRIER_KINDS };
struct ring_barriers {
  uint32_t base;
  __device__ uint32_t at(uint32_t kind, uint32_t stage) const { return base + (kind * STAGES + stage) * 8; }
};

#ifdef TD_HAS_WGMMA
struct work {
  td_attention_item item;
  td_plan_row row;
  uint32_t kv_head, kv_begin;
};

// Of round r, this block's work: every other round goes backwards, so that no block gets the longest of each. False: none.
template <int HD>
__device__ __forceinline__ bool find_work(const attention_args &a, const device_batch &batch, const prefill_works &works,
                                          uint32_t round, work *w)
{
  uint32_t i = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  if (i >= works.n_items * a.n_kv_heads)
    return false;
  uint32_t section = works.n_items * works.heads_at_once, first_head = i / section * works.heads_at_once;
  uint32_t n_heads = min(works.heads_at_once, a.n_kv_heads - first_head), item = i % section / n_heads;
  if (item >= batch.counts[COUNT_ITEMS]) // a recorded step's works are more, and these are the last
    return false;
  w->item = works.items[item];
  w->row = batch.rows[w->item.row];
  w->kv_head = first_head + i % section % n_heads;
  uint32_t first_pos = w->row.kv_len - w->row.q_len + w->item.token_begin;
  w->kv_begin = a.window > 0 && first_pos + 1 > a.window
                    ? (first_pos + 1 - a.window) / prefill_shape<HD>::KEYS * prefill_shape<HD>::KEYS
                    : 0;
  return true;
}

template <int HD>
__device__ __forceinline__ void produce(const attention_args &a, const device_batch &batch, const prefill_works &works,
                                        unsigned char *smem_k, unsigned char *smem_v, const ring_barriers &bars)
{
  using S = prefill_shape<HD>;
  size_t half = (size_t)batch.page_tokens * HD, page_stride = half * 2 * a.n_kv_heads;
  // the kernels before wrote these pages by ordinary stores
  fence_global_writes();
  uint32_t n = 0, n_tails = 0; // tiles so far
  work w;
  for (uint32_t round = 0; find_work<HD>(a, batch, works, round, &w); round++) {
    const bf16 *k = a.kv + w.kv_head * 2 * half, *v = k + half;
    const int32_t *pages = batch.page_table + w.row.page_table_offset;
    for (uint32_t kv0 = w.kv_begin; kv0 < w.item.kv_end; kv0 += S::KEYS, n++) {
      uint32_t stage = n % STAGES, parity = (n / STAGES & 1) ^ 1;
      barrier_wait(bars.at(EMPTY_K, stage), parity);
      copy_pages<HD>(shared_address(smem_k + stage * S::TILE_BYTES), k, pages, batch.page_tokens, page_stride, kv0, w.item.kv_end,
                     bars.at(FULL_K, stage));
      barrier_wait(bars.at(EMPTY_V, stage), parity);
      bool whole = kv0 + S::KEYS <= w.item.kv_end;
      uint32_t bar = whole ? bars.at(FULL_V, stage) : bars.at(TAIL, 0);
      copy_pages<HD>(shared_address(smem_v + stage * S::TILE_BYTES), v, pages, batch.page_tokens, page_stride, kv0,
                     w.item.kv_end, bar);
      if (!whole) {
        barrier_wait(bar, n_tails++ & 1);
        zero_lines<HD>(smem_v + stage * S::TILE_BYTES, w.item.kv_end - kv0);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
          barrier_arrive(bars.at(FULL_V, stage));
      }
    }
  }
}

// Begins to copy a warpgroup's 64 packed rows to shared memory; rows past the item's end repeat its last.
template <int HD>
__device__ __forceinline__ void copy_queries(unsigned char *smem_q, const attention_args &a, const work &w, uint32_t wg)
{
  constexpr int CHUNKS = HD / 8;
  uint32_t stride = (a.n_heads + 2 * a.n_kv_heads) * HD, last = w.item.n_tokens * a.group - 1;
  for (uint32_t i = threadIdx.x % WG; i < 64 * CHUNKS; i += WG) {
    uint32_t r = wg * 64 + i / CHUNKS, chunk = i % CHUNKS, p = min(r, last);
    const bf16 *src = a.qkv + (size_t)(w.row.q_start + w.item.token_begin + p / a.group) * stride +
                      (w.kv_head * a.group + p % a.group) * HD + chunk * 8;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(smem_q + kv_chunk_at(HD, r, chunk) * 2)), "l"(src)
                 : "memory");
  }
}

__device__ __forceinline__ void wait_queries(uint32_t wg)
{
  asm volatile("cp.async.wait_all;" ::: "memory");
  fence_shared_writes();
  named_sync(1 + wg, WG);
}

// A work's results: this thread's rows r0 and r0 + 8.
template <int HD>
__device__ __forceinline__ void store(const attention_args &a, const work &w, const consumer<HD> &c, uint32_t r0)
{
  uint32_t last = w.item.n_tokens * a.group - 1;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sum = c.l[h];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    float inv = divided(1, sum);
    uint32_t r = r0 + 8 * h;
    if (r > last)
      continue;
    bf16 *dst = a.out +
                ((size_t)(w.row.q_start + w.item.token_begin + r / a.group) * a.n_heads + w.kv_head * a.group + r % a.group) * HD +
                2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < HD / 8; j++)
      *(uint32_t *)(dst + j * 8) = pack2(c.o[4 * j + 2 * h] * inv, c.o[4 * j + 2 * h + 1] * inv);
  }
}

template <int HD>
__device__ __forceinline__ void consume(const attention_args &a, const device_batch &batch, const prefill_works &works,
                                        unsigned char *smem_q, unsigned char *smem_k, unsigned char *smem_v, const ring_barriers &bars)
{
  using S = prefill_shape<HD>;
  uint32_t wg = threadIdx.x / WG - 1, r0 = wg * 64 + threadIdx.x % WG / 32 * 16 + threadIdx.x % 32 / 4;
  uint32_t my_turn = 3 + wg, their_turn = 4 - wg;
  uint32_t q = shared_address(smem_q) + wg * 8 * S::GROUP_BYTES, k = shared_address(smem_k), v = shared_address(smem_v);
  bool elected = threadIdx.x % WG == 0;
  consumer<HD> c;
  float corr[2];
  uint32_t n = 0; // tiles before this work's
  work w, next;
  bool more = find_work<HD>(a, batch, works, 0, &w);
  if (more)
    copy_queries<HD>(smem_q, a, w, wg);
  for (uint32_t round = 1; more; round++) {
    uint32_t last = w.item.n_tokens * a.group - 1, n_tiles = (w.item.kv_end - w.kv_begin + S::KEYS - 1) / S::KEYS;
    int32_t first_pos = (int32_t)(w.row.kv_len - w.row.q_len + w.item.token_begin);
    int32_t pos[2] = {first_pos + (int32_t)(min(r0, last) / a.group), first_pos + (int32_t)(min(r0 + 8, last) / a.group)};
    int32_t last_pos = first_pos + (int32_t)w.item.n_tokens - 1;
    auto mask_if_needed = [&](uint32_t kv0) {
      bool ends = (int32_t)(kv0 + S::KEYS - 1) > first_pos, begins = a.window > 0 && (int32_t)kv0 <= last_pos - (int32_t)a.window;
      if (ends || begins)
        c.mask(kv0, pos, a.window);
    };
    c.clear();
    wait_queries(wg);
    if (wg == 1 && n_tiles > 1)
      named_arrive(their_turn, 2 * WG); // the first warpgroup begins
    barrier_wait(bars.at(FULL_K, n % STAGES), n / STAGES & 1);
    c.multiply_keys(q, k + n % STAGES * S::TILE_BYTES);
    wgmma_wait<0>();
    wgmma_hold(c.s);
    if (elected)
      barrier_arrive(bars.at(EMPTY_K, n % STAGES));
    mask_if_needed(w.kv_begin);
    c.softmax(a.scale_log2, corr);
    c.pack_weights();
    for (uint32_t i = 1; i < n_tiles; i++) {
      uint32_t g = n + i, stage = g % STAGES, before = (g - 1) % STAGES;
      barrier_wait(bars.at(FULL_K, stage), g / STAGES & 1);
      named_sync(my_turn, 2 * WG);
      c.multiply_keys(q, k + stage * S::TILE_BYTES);
      barrier_wait(bars.at(FULL_V, before), (g - 1) / STAGES & 1);
      c.multiply_values(v + before * S::TILE_BYTES);
      if (wg == 0 || i + 1 < n_tiles)
        named_arrive(their_turn, 2 * WG);
      wgmma_wait<1>();
      wgmma_hold(c.s);
      if (elected)
        barrier_arrive(bars.at(EMPTY_K, stage));
      mask_if_needed(w.kv_begin + i * S::KEYS);
      c.softmax(a.scale_log2, corr);
      wgmma_wait<0>();
      wgmma_hold(c.o);
      if (elected)
        barrier_arrive(bars.at(EMPTY_V, before));
      c.rescale(corr);
      c.pack_weights();
    }
    n += n_tiles;
    barrier_wait(bars.at(FULL_V, (n - 1) % STAGES), (n - 1) / STAGES & 1);
    c.multiply_values(v + (n - 1) % STAGES * S::TILE_BYTES);
    more = find_work<HD>(a, batch, works, round, &next); // its queries come while this work ends
    if (more) {
      named_sync(1 + wg, WG); // all four warps' products of these queries are done
      copy_queries<HD>(smem_q, a, next, wg);
    }
    wgmma_wait<0>();
    wgmma_hold(c.o);
    if (elected)
      barrier_arrive(bars.at(EMPTY_V, (n - 1) % STAGES));
    store<HD>(a, w, c, r0);
    w = next;
  }
}
#endif

template <int HD>
__global__ void __launch_bounds__(THREADS, 1) prefill_kernel(attention_args a, device_batch batch, prefill_works works)
{
#ifdef TD_HAS_WGMMA
  using S = prefill_shape<HD>;
  extern __shared__ unsigned char smem_raw[];
  __shared__ uint64_t barriers[BARRIER_KINDS * STAGES];
  const ring_barriers bars = {shared_address(barriers)};
  unsigned char *smem_q = smem_raw + (1024 - shared_address(smem_raw) % 1024) % 1024;
  unsigned char *smem_k = smem_q + S::Q_BYTES, *smem_v = smem_k + STAGES * S::TILE_BYTES;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(bars.at(FULL_K, i), 1);
      barrier_init(bars.at(FULL_V, i), 1);
      barrier_init(bars.at(EMPTY_K, i), CONSUMERS);
      barrier_init(bars.at(EMPTY_V, i), CONSUMERS);
    }
    barrier_init(bars.at(TAIL, 0), 1);
    barriers_made();
  }
  __syncthreads();
  wait_for_input();
  if (threadIdx.x < WG) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)PRODUCER_REGISTERS));
    if (threadIdx.x < 32)
      produce<HD>(a, batch, works, smem_k, smem_v, bars);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)CONSUMER_REGISTERS));
    consume<HD>(a, batch, works, smem_q, smem_k, smem_v, bars);
  }
#endif
}

template <int HD> static void launch(cuda_backend *b, const attention_args &a, uint32_t n_items)
{
  static bool sized = false; // the attribute is per kernel, for the life of the process
  if (!sized) {
    note(b, cudaFuncSetAttribute(prefill_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, prefill_shape<HD>::SMEM_BYTES));
    sized = true;
  }
  prefill_works works = {b->device_items, n_items, a.n_kv_heads};
  if (!b->padded_decode)
    works.heads_at_once = (uint32_t)(L2_KV_BYTES / ((uint64_t)b->items.items[0].kv_end * HD * 2 * sizeof(bf16)));
  works.heads_at_once = std::min(std::max(works.heads_at_once, 1u), a.n_kv_heads);
  queue_kernel(b, prefill_kernel<HD>, dim3(std::min(n_items * a.n_kv_heads, (uint32_t)b->n_sms)), THREADS,
               prefill_shape<HD>::SMEM_BYTES, a, b->batch, works);
}

void td_cuda_prefill_attention(cuda_backend *b, const attention_args &a, uint32_t head_dim, uint32_t n_items)
{
  switch (head_dim) { // td_cuda_has_wgmma_attention said so
  case 64: launch<64>(b, a, n_items); break;
  case 128: launch<128>(b, a, n_items); break;
  case 256: launch<256>(b, a, n_items); break;
  default: TD_BUG_ON(true);
  }
}
