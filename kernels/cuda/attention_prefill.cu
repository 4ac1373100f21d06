// Attention of prefill chunks on Hopper.
//
// wgmma reads its operands from shared memory, and the softmax of one consumer warpgroup runs beside the
// wgmmas of the other (attention_ring.cuh).
//
// A prefill tile is 128 query rows of one chunk and kv head: tokens x heads of the GQA group. There is one
// CTA for each SM, which does one tile after another. Its producer warp copies whole pages of K and V into
// the rings, up to a prefill tile ahead. Pages are stored in wgmma's layout (attention.cuh). KV tiles are
// counted from position 0, so a query row meets the same KV tiles in the same order, however its prompt was
// cut into chunks.
//
// In pairs, the two CTAs of a cluster take neighbouring tiles of a chunk and copy their keys once for both
// (attention_ring.cuh); a work item is then both tiles. If few tiles have many keys, a work item is one of a
// tile's KV splits (attention_prefill_sums.cuh). Decodes may run on the same SMs, by one more warpgroup of
// each CTA (attention_colocated.cuh). Source: FlashAttention-3 (Shah et al. 2024); PTX ISA on wgmma, mbarrier
// and cp.async.bulk.
#include "kernels/cuda/attention_colocated.cuh"
#include "kernels/cuda/attention_prefill_sums.cuh"
#include "kernels/cuda/attention_ring.cuh"
#include "kernels/cuda/cp_async.cuh"

#include <algorithm>
#include <type_traits>

enum { ROWS = TD_PREFILL_ROWS_WGMMA };
// Registers a thread. A warpgroup that asks for more than the others have given back waits forever.
enum { PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232 };
enum { CONSUMER_REGISTERS_COLOCATED = 192, DECODE_REGISTERS = 88 };
constexpr int threads_of(bool colocated) { return WARPGROUP_THREADS * (1 + TILE_WARPGROUPS + colocated); }
constexpr int registers_at_entry(bool colocated) { return 65536 / threads_of(colocated) / 8 * 8; }
static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * registers_at_entry(false));
static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS_COLOCATED + DECODE_REGISTERS <=
              4 * registers_at_entry(true));
enum { L2_KV_BYTES = 32 << 20 };

template <int HD, bool COLOCATED> constexpr int bytes_of_decodes = 0;
template <int HD> constexpr int bytes_of_decodes<HD, true> = colocated_shape<HD>::BYTES;

template <int HD, bool COLOCATED> struct prefill_shape : kv_tile_shape<HD> {
  using kv_tile_shape<HD>::TILE_BYTES;
  static constexpr int Q_BYTES = ROWS * HD * 2, TILE_STAGES = COLOCATED ? 2 : tile_stages(HD);
  static constexpr int TILES_BYTES = Q_BYTES + 2 * TILE_STAGES * TILE_BYTES;
  static constexpr int SMEM_BYTES = 1024 + TILES_BYTES + bytes_of_decodes<HD, COLOCATED>; // + alignment
};

// The loop of CTAs (or clusters) over work items x kv heads. Only heads_at_once heads are done at a time, few
// enough for their K and V to stay in the L2 cache. Such sets of heads alternate: one has its items longest
// first, the next shortest first. So lengths do not jump from set to set, and no CTA gets the longest item of
// several sets.
struct prefill_work {
  const td_attention_item *items;
  uint32_t n_items, heads_at_once;
  prefill_splits splits;
  bool beside;             // decodes begin immediately, while this kernel runs
  colocated_range decodes; // decodes that are colocated with this kernel
};

#ifdef TD_HAS_WGMMA
struct prefill_tile {
  td_attention_item item;
  uint32_t kv_head;
  uint32_t n_rows; // query rows; 0: the item has no tokens for this CTA
};

// This CTA's tile of a round. Every other round goes backwards, so that no CTA always gets the longest.
// Returns false if the CTA has no tile. Both CTAs of a cluster get the same item.
template <int CTAS>
__device__ __forceinline__ bool find_tile(const attention_args &a, const device_batch &batch,
                                          const prefill_work &work, uint32_t round, prefill_tile *w)
{
  uint32_t n_ctas = gridDim.x / CTAS, cta = blockIdx.x / CTAS;
  uint32_t i = round * n_ctas + (round % 2 ? n_ctas - 1 - cta : cta);
  if (i >= work.n_items * a.n_kv_heads)
    return false;
  uint32_t section = work.n_items * work.heads_at_once, first_head = i / section * work.heads_at_once;
  uint32_t n_heads = min(work.heads_at_once, a.n_kv_heads - first_head), item = i % section / n_heads;
  if ((a.n_kv_heads - 1) / work.heads_at_once - i / section & 1) // the last set: longest first
    item = work.n_items - 1 - item;
  if (item >= batch.counts[COUNT_ITEMS]) // a captured step's grid may have more tiles, at the end
    return false;
  w->item = work.items[item];
  w->kv_head = first_head + i % section % n_heads;
  w->n_rows = w->item.n_tokens * a.gqa_group;
  if constexpr (CTAS > 1) {
    uint32_t tokens = ROWS / a.gqa_group, first = cluster_rank() * tokens;
    bool any = w->item.n_tokens > first;
    w->n_rows = any ? min(w->item.n_tokens - first, tokens) * a.gqa_group : 0;
    w->item.query += any ? first : 0;
    w->item.position += any ? first : 0;
  }
  return true;
}

template <int HD, int CTAS, int STAGES>
__device__ __forceinline__ void produce(const attention_args &a, const device_batch &batch,
                                        const prefill_work &work, const tile_ring<HD, CTAS, STAGES> &ring)
{
  size_t half = (size_t)batch.page_tokens * HD;
  fence_global_writes(); // the kernels before wrote these pages with ordinary stores
  tile_producer<HD, CTAS, STAGES> copies = {ring, 0, 0, {}, false};
  prefill_tile w;
  for (uint32_t round = 0; find_tile<CTAS>(a, batch, work, round, &w); round++) {
    kv_tile_source t = {a.kv + w.kv_head * 2 * half,
                        batch.page_table + w.item.page_table_offset,
                        half * 2 * a.n_kv_heads,
                        batch.page_tokens,
                        w.item.kv_begin,
                        w.item.kv_end};
    for (; t.kv0 < t.kv_end; t.kv0 += kv_tile_shape<HD>::KEYS)
      copies.add(t);
  }
  copies.end();
}

// Starts copying a warpgroup's 64 query rows to shared memory. Rows past the item's end repeat its last row.
template <int HD>
__device__ __forceinline__ void copy_queries(unsigned char *smem_q, const attention_args &a,
                                             const prefill_tile &w, uint32_t wg)
{
  constexpr int CHUNKS = HD / 8;
  uint32_t stride = (a.n_heads + 2 * a.n_kv_heads) * HD, last = max(w.n_rows, 1) - 1;
  for (uint32_t i = threadIdx.x % WARPGROUP_THREADS; i < 64 * CHUNKS; i += WARPGROUP_THREADS) {
    uint32_t r = wg * 64 + i / CHUNKS, chunk = i % CHUNKS, p = min(r, last);
    const bf16 *src = a.qkv + (size_t)(w.item.query + p / a.gqa_group) * stride +
                      (w.kv_head * a.gqa_group + p % a.gqa_group) * HD + chunk * 8;
    cp_async_16(smem_q + kv_chunk_at(HD, r, chunk) * 2, src);
  }
}

__device__ __forceinline__ void wait_queries(uint32_t wg)
{
  cp_async_wait_all();
  fence_shared_writes();
  named_sync(1 + wg, WARPGROUP_THREADS);
}

// The epilogue of this thread's rows r0 and r0 + 8 of a prefill tile.
template <int HD>
__device__ __forceinline__ void store(const attention_args &a, const prefill_tile &w, const consumer<HD> &c,
                                      uint32_t r0)
{
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sum = c.l[h];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    float inv = divided(1, sum);
    uint32_t r = r0 + 8 * h;
    if (r >= w.n_rows)
      continue;
    bf16 *dst =
        a.out +
        ((size_t)(w.item.query + r / a.gqa_group) * a.n_heads + w.kv_head * a.gqa_group + r % a.gqa_group) *
            HD +
        2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < HD / 8; j++)
      *(uint32_t *)(dst + j * 8) = pack2(c.o[4 * j + 2 * h] * inv, c.o[4 * j + 2 * h + 1] * inv);
  }
}

// The partial of a KV split for this warpgroup's rows. Partials are numbered by split, kv head, CTA of the
// cluster and warpgroup.
template <int CTAS>
__device__ __forceinline__ prefill_partial partial_of(const attention_args &a, const device_batch &batch,
                                                      const prefill_work &work, const prefill_tile &w,
                                                      uint32_t wg)
{
  uint32_t rank = CTAS > 1 ? cluster_rank() : 0, stride = a.n_kv_heads * CTAS * TILE_WARPGROUPS;
  return {work.splits,
          w.item.first_partial * stride + (w.kv_head * CTAS + rank) * TILE_WARPGROUPS + wg,
          stride,
          w.item.partial - w.item.first_partial,
          w.item.n_partials,
          batch.counts[COUNT_STEP]};
}

// After all its items, this CTA reduces a part of the tile's rows for each KV split that it computed.
template <int HD, int CTAS>
__device__ __forceinline__ void reduce_partials(const attention_args &a, const device_batch &batch,
                                                const prefill_work &work, uint32_t wg)
{
  prefill_tile w;
  for (uint32_t round = 0; find_tile<CTAS>(a, batch, work, round, &w); round++)
    if (w.item.n_partials > 1)
      partial_of<CTAS>(a, batch, work, w, wg)
          .template reduce_partials<HD>(a.scale_log2, [&](uint32_t row) -> bf16 * {
            uint32_t r = wg * 64 + row;
            return r >= w.n_rows ? nullptr
                                 : a.out + ((size_t)(w.item.query + r / a.gqa_group) * a.n_heads +
                                            w.kv_head * a.gqa_group + r % a.gqa_group) *
                                               HD;
          });
}

template <int HD, int CTAS, int STAGES>
__device__ __forceinline__ void consume(const attention_args &a, const device_batch &batch,
                                        const prefill_work &work, unsigned char *smem_q,
                                        const tile_ring<HD, CTAS, STAGES> &ring)
{
  using S = kv_tile_shape<HD>;
  uint32_t wg = threadIdx.x / WARPGROUP_THREADS - 1,
           r0 = wg * 64 + threadIdx.x % WARPGROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
  uint32_t q16 = warp_uniform(operand_address(shared_address(smem_q) + wg * 8 * S::GROUP_BYTES));
  consumer<HD> c;
  pipeline_stage s = {0, 0}; // stage of this prefill tile's first KV tile
  prefill_tile w, next;
  bool more = find_tile<CTAS>(a, batch, work, 0, &w);
  if (more)
    copy_queries<HD>(smem_q, a, w, wg);
  for (uint32_t round = 1; more; round++) {
    uint32_t last = max(w.n_rows, 1) - 1;
    uint32_t n_tiles = warp_uniform((w.item.kv_end - w.item.kv_begin + S::KEYS - 1) / S::KEYS);
    int32_t first_pos = (int32_t)w.item.position;
    int32_t pos[2] = {first_pos + (int32_t)(min(r0, last) / a.gqa_group),
                      first_pos + (int32_t)(min(r0 + 8, last) / a.gqa_group)};
    int32_t last_pos = first_pos + (int32_t)(last / a.gqa_group);
    wait_queries(wg);
    pipeline_stage end =
        ring.attend(c, s, n_tiles, wg, q16, a.scale_log2, [&](consumer<HD> &tile, uint32_t i) {
          uint32_t kv0 = w.item.kv_begin + i * S::KEYS;
          bool ends = (int32_t)(kv0 + S::KEYS - 1) > first_pos,
               begins = a.window > 0 && (int32_t)kv0 <= last_pos - (int32_t)a.window;
          if (ends || begins)
            tile.mask(kv0, pos, a.window);
        });
    ring.start_pv(c, end);
    s = ring.after(end);
    more = find_tile<CTAS>(a, batch, work, round, &next); // its query rows are copied while this tile ends
    if (more) {
      named_sync(1 + wg, WARPGROUP_THREADS); // all four warps' wgmmas of the old query rows are done
      copy_queries<HD>(smem_q, a, next, wg);
    }
    ring.finish_pv(c, end);
    if (w.item.n_partials > 1)
      partial_of<CTAS>(a, batch, work, w, wg).template publish_split<HD>(c, 1 + wg);
    else
      store<HD>(a, w, c, r0);
    w = next;
  }
  if (work.splits.n > 0)
    reduce_partials<HD, CTAS>(a, batch, work, wg);
}
#endif

template <int HD, int CTAS, bool COLOCATED>
__global__ void __launch_bounds__(threads_of(COLOCATED), 1)
    prefill_kernel(attention_args a, device_batch batch, prefill_work work)
{
#ifdef TD_HAS_WGMMA
  using S = prefill_shape<HD, COLOCATED>;
  using ring_of_tiles = tile_ring<HD, CTAS, S::TILE_STAGES>;
  extern __shared__ unsigned char smem_raw[];
  __shared__ uint64_t barriers[ring_of_tiles::BARRIERS];
  unsigned char *smem_q = smem_raw + (1024 - shared_address(smem_raw) % 1024) % 1024,
                *smem_k = smem_q + S::Q_BYTES;
  const ring_of_tiles ring = {smem_k, smem_k + S::TILE_STAGES * S::TILE_BYTES, shared_address(barriers)};
  if (!work.beside)
    pdl_launch_dependents();
  __shared__ std::conditional_t<COLOCATED, colocated_state<COLOCATED ? HD : 64>, char> decodes;
  if (threadIdx.x == 0) {
    ring.init_barriers();
    if constexpr (COLOCATED) {
      decodes.clear();
      colocated_rings<HD>(smem_q + S::TILES_BYTES, decodes).init_barriers();
    }
    publish_barriers();
  }
  CTAS > 1 ? cluster_sync() : __syncthreads();
  pdl_wait();
  if (work.beside)
    pdl_launch_dependents(); // the kernels before have ended, so decodes need not wait for anything
  if constexpr (COLOCATED) {
    const colocated_rings<HD> rings(smem_q + S::TILES_BYTES, decodes);
    if (blockIdx.x == 0 && threadIdx.x == 0)
      *work.decodes.next_tickets = 0;
    if (threadIdx.x < WARPGROUP_THREADS) {
      warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
      if (threadIdx.x < 32)
        produce(a, batch, work, ring);
      else if (threadIdx.x < 64)
        produce_decodes<HD>(a, batch, work.decodes, rings, decodes);
    } else if (threadIdx.x < WARPGROUP_THREADS * (1 + TILE_WARPGROUPS)) {
      warpgroup_reg_alloc<CONSUMER_REGISTERS_COLOCATED>();
      consume(a, batch, work, smem_q, ring);
      if (threadIdx.x % WARPGROUP_THREADS == 0)
        atomicAdd(&decodes.prefill_ended, 1);
    } else {
      warpgroup_reg_dealloc<DECODE_REGISTERS>();
      colocated_consumer<HD>{a, rings, decodes, smem_q + S::TILES_BYTES + colocated_shape<HD>::RING_BYTES}
          .run();
    }
  } else {
    if (threadIdx.x < WARPGROUP_THREADS) {
      warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
      if (threadIdx.x < 32)
        produce(a, batch, work, ring);
    } else {
      warpgroup_reg_alloc<CONSUMER_REGISTERS>();
      consume(a, batch, work, smem_q, ring);
    }
  }
  if constexpr (CTAS > 1) {
    __syncwarp();
    cluster_sync(); // the other CTA may still copy to this one's shared memory, or arrive at its barriers
  }
#endif
}

template <int HD, int CTAS, bool COLOCATED>
static void launch_in(cuda_backend *b, attention_group *g, const attention_args &a, uint32_t n_items)
{
  g->n_colocated += COLOCATED;
  prefill_work work = {
      g->device_items, n_items, a.n_kv_heads, {}, has_decodes_beside(b, g), colocated_range_of(g, n_items)};
  uint32_t n_sms = (uint32_t)b->device.n_sms - (work.beside ? g->work.prefill.sms_beside : 0);
  if (!is_capture(&b->attention)) {
    work.heads_at_once =
        (uint32_t)(L2_KV_BYTES / ((uint64_t)g->work.longest_prefill * HD * 2 * sizeof(bf16)));
    work.splits = {g->prefill_partials, g->prefill_flags, g->work.n_prefill_partials,
                   b->attention.n_launches++};
  }
  work.heads_at_once = std::min(std::max(work.heads_at_once, 1u), a.n_kv_heads);
  queue_cluster_kernel(&b->device, prefill_kernel<HD, CTAS, COLOCATED>,
                       dim3(std::min(n_items * a.n_kv_heads, n_sms / CTAS) * CTAS), CTAS,
                       threads_of(COLOCATED), prefill_shape<HD, COLOCATED>::SMEM_BYTES, a,
                       td_cuda_group_batch(b, g), work);
}

template <int HD, int CTAS>
static void launch_with_decodes(cuda_backend *b, attention_group *g, const attention_args &a,
                                uint32_t n_items)
{
  if constexpr (colocated_rows(HD) > 0)
    if (is_colocated(b, g))
      return launch_in<HD, CTAS, true>(b, g, a, n_items);
  launch_in<HD, CTAS, false>(b, g, a, n_items);
}

template <int HD>
static void launch(cuda_backend *b, attention_group *g, const attention_args &a, uint32_t n_items)
{
  if constexpr (has_prefill_pairs(HD))
    if (!is_capture(&b->attention) && g->work.prefill.tiles == 2)
      return launch_with_decodes<HD, 2>(b, g, a, n_items);
  launch_with_decodes<HD, 1>(b, g, a, n_items);
}

void td_cuda_prefill_attention(cuda_backend *b, attention_group *g, const attention_args &a, uint32_t n_items)
{
  switch (g->spec.head_dim) { // td_cuda_has_wgmma_attention was checked before
  case 64: launch<64>(b, g, a, n_items); break;
  case 96: launch<96>(b, g, a, n_items); break;
  case 128: launch<128>(b, g, a, n_items); break;
  case 256: launch<256>(b, g, a, n_items); break;
  default: TD_BUG_ON(true);
  }
}

template <int HD, int CTAS, bool COLOCATED> static cudaError_t allow_smem_one()
{
  return cudaFuncSetAttribute(prefill_kernel<HD, CTAS, COLOCATED>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              prefill_shape<HD, COLOCATED>::SMEM_BYTES);
}

template <int HD> static cudaError_t allow_smem()
{
  cudaError_t e[4] = {allow_smem_one<HD, 1, false>()};
  if constexpr (has_prefill_pairs(HD))
    e[1] = allow_smem_one<HD, 2, false>();
  if constexpr (colocated_rows(HD) > 0)
    e[2] = allow_smem_one<HD, 1, true>(), e[3] = allow_smem_one<HD, 2, true>();
  for (cudaError_t one : e)
    if (one != cudaSuccess)
      return one;
  return cudaSuccess;
}

template <int HD> static uint32_t count_pairs()
{
  if constexpr (has_prefill_pairs(HD)) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 2;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2);
    config.blockDim = threads_of(false);
    config.dynamicSmemBytes = prefill_shape<HD, false>::SMEM_BYTES;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int n = 0;
    if (cudaOccupancyMaxActiveClusters(&n, prefill_kernel<HD, 2, false>, &config) == cudaSuccess && n > 0)
      return (uint32_t)n;
    cudaGetLastError(); // clears the error of a device without clusters
  }
  return 0;
}

uint32_t td_cuda_prefill_pairs(uint32_t head_dim)
{
  return head_dim == 64    ? count_pairs<64>()
         : head_dim == 96  ? count_pairs<96>()
         : head_dim == 128 ? count_pairs<128>()
                           : 0;
}

cudaError_t td_cuda_prefill_allow_smem(uint32_t head_dim)
{
  return head_dim == 64    ? allow_smem<64>()
         : head_dim == 96  ? allow_smem<96>()
         : head_dim == 128 ? allow_smem<128>()
                           : allow_smem<256>();
}
