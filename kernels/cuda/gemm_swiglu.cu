// GEMMs of many tokens followed by SwiGLU on sm_90a, in one launch. The gate and up values are never written
// to memory.
//
// A tile is 128 tokens by 128 columns of out. The 128 gate rows and the 128 up rows of these columns are the
// N side of one wgmma. So a thread's sums hold gate and up of the same elements, and SwiGLU on f32 sums needs
// no exchange between threads.
//
// Two CTAs form a cluster, and each loads half of what both need, for both (multicast). A CTA goes through
// its part of the tiles. Two producer threads keep a ring of k tiles of x and of the weights full, across
// tiles. Two consumer warpgroups multiply 64 tokens each, and TMA stores their results while the next tile is
// multiplied. The order of tiles reads weights once and keeps x in the L2 cache.
//
// Every sum is one ascending chain over k: on this path a token gets the same bits in every batch.
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/swiglu.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <algorithm>

enum {
  TILE_ROWS = 128,
  TILE_COLUMNS = 128,
  CLUSTER = 2,
  CONSUMER_WARPGROUPS = 2, // consumer warpgroups; each takes half of a tile's tokens
  WARPGROUP_THREADS = 128,
  CONSUMER_WARPS = CONSUMER_WARPGROUPS * WARPGROUP_THREADS / 32,
  GEMM_SWIGLU_THREADS = (1 + CONSUMER_WARPGROUPS) * WARPGROUP_THREADS,
  PRODUCER_REGISTERS = 40,
  CONSUMER_REGISTERS = 232,
  STAGES = 4,
  X_BYTES = TILE_ROWS * K_TILE_ROW_BYTES,
  STAGE_BYTES = X_BYTES + 2 * TILE_COLUMNS * K_TILE_ROW_BYTES,
  WARP_ROWS = 16,
  BOX_BYTES = WARP_ROWS * K_TILE_ROW_BYTES, // a box of results: 64 columns
  OUT_BYTES = TILE_COLUMNS / K_TILE * BOX_BYTES,
  SMEM_BYTES = STAGES * STAGE_BYTES + CONSUMER_WARPS * OUT_BYTES + 2 * STAGES * 8,
};

// A cluster's unit of work is a pair of tiles, one for each CTA: below one another if the CTAs share weights,
// next to one another if they share x. If the last round would leave half of the clusters idle, its pairs are
// cut: each becomes two pairs with half the columns.
struct tile_pairs {
  uint32_t rows, columns, rows_at_once; // pairs in the matrix, and rows of pairs done together
  uint32_t n_whole, n;                  // whole pairs, and all units; a cut pair counts as two
};

struct gemm_swiglu_args {
  tile_pairs pairs;
  uint32_t n_k_tiles;
};

struct gemm_swiglu_maps {
  CUtensorMap w[2], x, out; // w: for whole tiles and for halves
};

#ifdef TD_HAS_WGMMA
// A stage: a k tile of x, then a k tile of the weights, gate and up. Consumers of both CTAs release it,
// because the producers of both write it.
typedef ring<STAGES, STAGE_BYTES, CLUSTER * CONSUMER_WARPS> gemm_swiglu_ring;

struct swiglu_tile {
  uint32_t row, column; // row and column: the tile's first element
  bool half;
  __device__ __forceinline__ uint32_t width() const { return half ? TILE_COLUMNS / 2 : TILE_COLUMNS; }
};

template <bool SHARES_X>
__device__ __forceinline__ swiglu_tile find_tile(const tile_pairs &t, uint32_t i, uint32_t rank)
{
  bool half = i >= t.n_whole;
  uint32_t right = half ? (i - t.n_whole) % 2 : 0; // which half of a pair that was cut
  i = half ? t.n_whole + (i - t.n_whole) / 2 : i;
  uint32_t section = t.rows_at_once * t.columns, first = i / section * t.rows_at_once,
           n = min(t.rows_at_once, t.rows - first);
  uint32_t row = first + i % section % n, column = i % section / n;
  swiglu_tile tile = {row, column * TILE_COLUMNS, half};
  if (SHARES_X)
    tile.column = tile.column * CLUSTER + (right * CLUSTER + rank) * tile.width();
  else
    tile.column += right * tile.width(), tile.row = row * CLUSTER + rank;
  tile.row *= TILE_ROWS;
  return tile;
}

// Calls f(tile, k_tile) for all k tiles of this CTA, in order.
template <bool SHARES_X, class F>
__device__ __forceinline__ void each_k_tile(const gemm_swiglu_args &a, uint32_t rank, F f)
{
  for (uint32_t i = blockIdx.x / CLUSTER; i < a.pairs.n; i += gridDim.x / CLUSTER) {
    swiglu_tile tile = find_tile<SHARES_X>(a.pairs, i, rank);
    for (uint32_t k_tile = 0; k_tile < a.n_k_tiles; k_tile++)
      f(tile, k_tile);
  }
}

// The producer of weights loads gate rows, then up rows. CTAs that share weights load one of the two each.
template <bool SHARES_X>
__device__ __forceinline__ void load_weights(const gemm_swiglu_maps &maps, const gemm_swiglu_args &a,
                                             gemm_swiglu_ring ring, uint32_t rank)
{
  uint64_t policy = read_once_policy();
  each_k_tile<SHARES_X>(a, rank, [&](const swiglu_tile &tile, uint32_t k_tile) {
    const CUtensorMap *map = &maps.w[tile.half];
    uint32_t half_bytes = tile.width() * K_TILE_ROW_BYTES;
    ring.acquire();
    ring.expect(X_BYTES + 2 * half_bytes); // includes the bytes of x
    if (SHARES_X)
      tma_load_halves_once(ring.data() + X_BYTES, map, ring.full(), tile.column, k_tile, policy);
    else
      tma_load_half_multicast(ring.data() + X_BYTES + rank * half_bytes, map, ring.full(), tile.column, rank,
                              k_tile, (1 << CLUSTER) - 1, policy);
    ring.advance();
  });
}

// The producer of x. CTAs that share x load half of the tokens each.
template <bool SHARES_X>
__device__ __forceinline__ void load_x(const gemm_swiglu_maps &maps, const gemm_swiglu_args &a,
                                       gemm_swiglu_ring ring, uint32_t rank)
{
  constexpr uint32_t half = TILE_ROWS / CLUSTER;
  fence_global_writes(); // x was written with ordinary stores
  each_k_tile<SHARES_X>(a, rank, [&](const swiglu_tile &tile, uint32_t k_tile) {
    ring.acquire();
    if (SHARES_X)
      tma_load_multicast(ring.data() + rank * half * K_TILE_ROW_BYTES, &maps.x, ring.full(),
                         tile.row + rank * half, k_tile, (1 << CLUSTER) - 1);
    else
      tma_load(ring.data(), &maps.x, ring.full(), tile.row, k_tile);
    ring.advance();
  });
}

// Descriptor of a K-major operand with 128-byte rows swizzled by TMA: groups of 8 rows are 1024 bytes apart.
// k: in units of 16 columns.
__device__ __forceinline__ uint64_t descriptor(uint32_t address16, uint32_t k)
{
  return wgmma_descriptor(address16 + k * 2, 16, 1024);
}

// The main loop: d = this warpgroup's rows of a tile. A stage is released to the producers of both CTAs when
// its wgmmas are done, which is after the next stage's wgmmas were queued.
template <int N>
__device__ __forceinline__ void multiply(float (&d)[N], gemm_swiglu_ring &ring, uint32_t n_k_tiles)
{
  uint32_t lane = threadIdx.x % 32, warpgroup = warp_uniform(threadIdx.x / WARPGROUP_THREADS - 1);
  uint32_t empty_there = address_in_cluster(ring.empty(0), lane % CLUSTER), before = 0;
  for (uint32_t k_tile = 0; k_tile < n_k_tiles; k_tile++) {
    uint32_t x16 =
        warp_uniform((ring.data() + warpgroup * (TILE_ROWS / CONSUMER_WARPGROUPS) * K_TILE_ROW_BYTES) >> 4);
    uint32_t w16 = warp_uniform((ring.data() + X_BYTES) >> 4);
    ring.wait_full();
    wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < K_TILE / 16; k++)
      wgmma_ss(d, descriptor(x16, k), descriptor(w16, k), (k_tile | k) != 0);
    wgmma_commit();
    if (k_tile > 0) {
      wgmma_wait<1>();
      if (lane < CLUSTER)
        ring.release_in_cluster(empty_there, before);
    }
    before = ring.now.index;
    ring.advance();
  }
  wgmma_wait<0>();
  wgmma_fence_operand(d);
  if (lane < CLUSTER)
    ring.release_in_cluster(empty_there, before);
}

// The epilogue of a warp's 16 rows, through its own shared memory: boxes of 64 columns, swizzled for TMA. N /
// 2 columns are stored; the second half of d holds up.
template <int N>
__device__ __forceinline__ void store_tile(const float (&d)[N], const CUtensorMap *map, uint32_t results,
                                           const swiglu_tile &tile)
{
  constexpr int UP = N / 2;
  uint32_t warp = threadIdx.x / 32 - WARPGROUP_THREADS / 32, lane = threadIdx.x % 32, r = lane % 16;
  if (lane == 0)
    tma_store_wait_read();
  __syncwarp();
#pragma unroll
  for (int j = 0; j < UP / 4; j += 2) { // 8 columns each
    uint32_t v[4], chunk = (j + lane / 16) % 8;
#pragma unroll
    for (int m = 0; m < 4; m++) {
      int i = 4 * (j + m / 2) + 2 * (m % 2);
      v[m] = swiglu_two(d[i], d[i + 1], d[UP + i], d[UP + i + 1]);
    }
    stmatrix_x4(results + j / 8 * BOX_BYTES + r * K_TILE_ROW_BYTES + ((chunk ^ (r & 7)) * 16), v);
  }
  fence_shared_writes();
  __syncwarp();
  if (lane == 0) {
#pragma unroll
    for (uint32_t box = 0; box < UP / 4 / 8; box++)
      tma_store(map, results + box * BOX_BYTES, tile.row + warp * WARP_ROWS, tile.column / K_TILE + box);
    tma_store_commit();
  }
}

// N: a thread's sums of a tile, gate and up.
template <int N>
__device__ __forceinline__ void compute_tile(gemm_swiglu_ring &ring, const gemm_swiglu_maps &maps,
                                             const gemm_swiglu_args &a, uint32_t results,
                                             const swiglu_tile &tile)
{
  float d[N];
  multiply(d, ring, a.n_k_tiles);
  store_tile(d, &maps.out, results, tile);
}
#endif

template <bool SHARES_X>
__global__ void __launch_bounds__(GEMM_SWIGLU_THREADS, 1)
    gemm_swiglu_kernel(const __grid_constant__ gemm_swiglu_maps maps, const gemm_swiglu_args a)
{
#ifdef TD_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char gemm_swiglu_memory[];
  uint32_t base = shared_address(gemm_swiglu_memory), results = base + STAGES * STAGE_BYTES;
  uint32_t rank = cluster_rank(), warp = threadIdx.x / 32;
  gemm_swiglu_ring ring;
  ring.place(base, results + CONSUMER_WARPS * OUT_BYTES);
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(&maps.w[0]);
    prefetch_map(&maps.x);
    ring.init(0, STAGES);
    publish_barriers();
  }
  __syncthreads();
  cluster_sync(); // now the other CTA's barriers are initialised too
  if (warp < WARPGROUP_THREADS / 32) {
    warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) // weights do not depend on earlier kernels
      load_weights<SHARES_X>(maps, a, ring.as_producer(), rank);
    pdl_wait();
    if (threadIdx.x == 32)
      load_x<SHARES_X>(maps, a, ring.as_producer(), rank);
    __syncwarp();
  } else {
    warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    pdl_wait();
    results += (warp - WARPGROUP_THREADS / 32) * OUT_BYTES;
    for (uint32_t i = blockIdx.x / CLUSTER; i < a.pairs.n; i += gridDim.x / CLUSTER) {
      swiglu_tile tile = find_tile<SHARES_X>(a.pairs, i, rank);
      if (!tile.half)
        compute_tile<TILE_COLUMNS>(ring, maps, a, results, tile);
      else
        compute_tile<TILE_COLUMNS / 2>(ring, maps, a, results, tile);
    }
    if (threadIdx.x % 32 == 0)
      tma_store_wait_read();
    __syncwarp();
  }
  cluster_sync(); // neither CTA's shared memory may go while the other still writes to it
#endif
}

// ---- host side ----

typedef void (*gemm_swiglu_function)(gemm_swiglu_maps, gemm_swiglu_args);

// ROWS_AT_ONCE rows of x stay in the L2 cache while all weights pass.
enum { GEMM_SWIGLU_ROWS_MIN = 129, ROWS_AT_ONCE = 2048 };
// The least fraction of the SMs' time that is spent on real elements of out. Below it cuBLASLt and SwiGLU are
// faster (README.md, "Linears").
static const float USED_MIN = 0.9f;

static gemm_swiglu_function function_of(bool shares_x)
{
  return shares_x ? gemm_swiglu_kernel<true> : gemm_swiglu_kernel<false>;
}

// Counts the clusters that are resident at once: some SMs may have no partner.
static void count_clusters(cuda_backend *b)
{
  int n = 0;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = CLUSTER;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)b->device.n_sms / CLUSTER * CLUSTER);
  config.blockDim = GEMM_SWIGLU_THREADS;
  config.dynamicSmemBytes = SMEM_BYTES;
  config.attrs = &cluster;
  config.numAttrs = 1;
  if (cudaOccupancyMaxActiveClusters(&n, function_of(false), &config) != cudaSuccess)
    (void)cudaGetLastError();
  b->linears.gemm_swiglu_clusters = n > 0 ? (uint32_t)n : 0; // with 0, cuBLASLt is used
}

td_status td_gemm_swiglu_open(cuda_backend *b, td_error *err)
{
  if (!b->linears.encode_map || b->config.batch_invariant)
    return TD_OK;
  cudaError_t e = cudaSuccess;
  for (int shares_x = 0; shares_x < 2 && e == cudaSuccess; shares_x++)
    e = cudaFuncSetAttribute(function_of(shares_x), cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
  if (e == cudaSuccess)
    count_clusters(b);
  return e == cudaSuccess ? TD_OK : td_cuda_fail(err, e, "kernels for SwiGLU");
}

static uint32_t ceil_div(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

static tile_pairs plan_tiles(uint32_t n, uint32_t width, bool shares_x, uint32_t n_clusters)
{
  uint32_t rows = shares_x ? TILE_ROWS : CLUSTER * TILE_ROWS,
           columns = shares_x ? CLUSTER * TILE_COLUMNS : TILE_COLUMNS;
  tile_pairs t = {ceil_div(n, rows), ceil_div(width, columns), ROWS_AT_ONCE / rows, 0, 0};
  uint32_t all = t.rows * t.columns, last = all % n_clusters;
  t.n_whole = last <= n_clusters / 2 ? all - last : all;
  t.n = t.n_whole + 2 * (all - t.n_whole);
  return t;
}

// Rounds over all clusters, in units of half a round.
static uint32_t half_rounds(const tile_pairs &t, uint32_t n_clusters)
{
  return 2 * ceil_div(t.n_whole, n_clusters) + (t.n > t.n_whole);
}

static bool encode(cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p, bool shares_x,
                   gemm_swiglu_maps *m)
{
  const td_cuda_weight *w = cuda_weight(p->weight);
  const uint32_t n_k_tiles = w->n_in / K_TILE;
  const cuuint64_t row_bytes = (cuuint64_t)w->n_in * sizeof(bf16),
                   out_bytes = (cuuint64_t)p->width * sizeof(bf16);
  const cuuint64_t w_dims[4] = {K_TILE, p->width, 2, n_k_tiles},
                   w_strides[3] = {row_bytes, row_bytes * p->width, K_TILE_ROW_BYTES};
  const cuuint64_t x_dims[3] = {K_TILE, p->n, n_k_tiles}, x_strides[2] = {row_bytes, K_TILE_ROW_BYTES};
  const cuuint64_t out_dims[3] = {K_TILE, p->n, p->width / K_TILE},
                   out_strides[2] = {out_bytes, K_TILE_ROW_BYTES};
  const cuuint32_t x_box[3] = {K_TILE, (cuuint32_t)(shares_x ? TILE_ROWS / CLUSTER : TILE_ROWS), 1};
  const cuuint32_t out_box[3] = {K_TILE, WARP_ROWS, 1};
  for (cuuint32_t half = 0; half < 2; half++) {
    const cuuint32_t w_box[4] = {K_TILE, TILE_COLUMNS / (1 + half), shares_x ? 2u : 1u, 1};
    if (!td_skinny_encode_map(b, &m->w[half], w->types[0].storage, 4, w->data, w_dims, w_strides, w_box))
      return false;
  }
  return td_skinny_encode_map(b, &m->x, TD_BF16, 3, at<void>(p->x), x_dims, x_strides, x_box) &&
         td_skinny_encode_map(b, &m->out, TD_BF16, 3, at<void>(p->out), out_dims, out_strides, out_box);
}

bool td_gemm_swiglu_serves(const cuda_backend *b, const td_cuda_weight *w, uint32_t width)
{
  return b->linears.gemm_swiglu_clusters > 0 && is_of_type(w, TD_BF16, TD_BF16) && !w->bias &&
         w->n_in % K_TILE == 0 && width % K_TILE == 0;
}

static bool can_serve(const cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p)
{
  return p->n >= GEMM_SWIGLU_ROWS_MIN && td_gemm_swiglu_serves(b, cuda_weight(p->weight), p->width);
}

// Picks the sharing that needs fewer rounds.
static tile_pairs choose(const cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p,
                         bool *shares_x)
{
  tile_pairs below = plan_tiles(p->n, p->width, false, b->linears.gemm_swiglu_clusters),
             beside = plan_tiles(p->n, p->width, true, b->linears.gemm_swiglu_clusters);
  *shares_x = half_rounds(beside, b->linears.gemm_swiglu_clusters) <
              half_rounds(below, b->linears.gemm_swiglu_clusters);
  return *shares_x ? beside : below;
}

bool td_gemm_swiglu_is_faster(const cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p)
{
  bool shares_x;
  if (!can_serve(b, p))
    return false;
  float rounds = (float)half_rounds(choose(b, p, &shares_x), b->linears.gemm_swiglu_clusters) / 2;
  float time = rounds * (float)b->linears.gemm_swiglu_clusters * (CLUSTER * TILE_ROWS * TILE_COLUMNS);
  return (float)p->n * (float)p->width >= USED_MIN * time;
}

bool td_gemm_swiglu_linear(cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p, bool forced)
{
  bool shares_x;
  gemm_swiglu_maps maps;
  if (!can_serve(b, p) || !(forced || td_gemm_swiglu_is_faster(b, p)))
    return false;
  const gemm_swiglu_args a = {choose(b, p, &shares_x), p->weight->n_in / K_TILE};
  if (!encode(b, p, shares_x, &maps))
    return false;
  queue_cluster_kernel(&b->device, function_of(shares_x),
                       dim3(std::min(a.pairs.n, b->linears.gemm_swiglu_clusters) * CLUSTER), CLUSTER,
                       GEMM_SWIGLU_THREADS, SMEM_BYTES, maps, a);
  return true;
}
