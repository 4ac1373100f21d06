// GEMMs of 9 to 32 tokens on sm_90a. (gemm_fused.cu does fewer tokens, and up to 16 in fused steps.) Their
// time is that of reading the weights once.
//
// Weights do not depend on earlier kernels, so memory need not be idle between two GEMMs. A CTA fills its
// ring with weights before it waits for the kernels before it. The ring takes most of an SM's shared memory,
// so an SM has one CTA, and the next GEMM's CTAs begin to load as soon as this one's CTAs end.
//
// A CTA owns whole weight rows: tiles of up to 64, with a height that gives all SMs about the same work. One
// producer thread keeps the ring full of weights by TMA; another loads the k tiles of x that go with them.
// Two consumer warpgroups multiply: weight rows are the M side of wgmma, tokens the N side, padded to 16 or
// 32. A tile of fewer than 64 weight rows is multiplied as 64 and the rest is dropped, because the tensor
// cores have time to spare. Only real tokens, up to a multiple of 8, are loaded: a third more at 24 tokens
// would cost up to 8 %.
//
// The order of a sum does not depend on n: on this path a token gets the same bits in every batch.
#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <algorithm>

enum {
  CONSUMER_WARPGROUPS = 2, // consumer warpgroups; each takes half of a stage's k tiles
  WARPGROUP_THREADS = 128,
  WEIGHT_PRODUCER = CONSUMER_WARPGROUPS * WARPGROUP_THREADS, // number of a thread
  X_PRODUCER = WEIGHT_PRODUCER + 32,                         // number of a thread
  SKINNY_THREADS = WEIGHT_PRODUCER + 64,
  CONSUMER_WARPS = CONSUMER_WARPGROUPS * WARPGROUP_THREADS / 32,
  TILE_ROWS_MAX = 64,
};

struct skinny_args {
  const bf16 *bias;
  void *out;
  bool add; // adds to the old value of out
  uint32_t n, n_out;
  uint32_t tile_rows, n_tiles;
  uint32_t x_rows;     // tokens that are loaded: n rounded up to a multiple of 8
  uint32_t n_k_blocks; // blocks of K_TILES k tiles; a pipeline stage holds one
  uint32_t n_stages;
};

// ---- device helpers ----

#ifdef TD_HAS_WGMMA
// Descriptor of a K-major operand with 128-byte rows swizzled by TMA: groups of 8 rows are 1024 bytes apart.
__device__ __forceinline__ uint64_t descriptor(uint32_t address)
{
  return wgmma_descriptor(address >> 4, 16, 1024);
}

template <int BAR> __device__ __forceinline__ void consumers_sync()
{
  asm volatile("bar.sync %0, %1;" ::"n"(BAR), "n"((int)CONSUMER_WARPGROUPS * WARPGROUP_THREADS) : "memory");
}

template <int BAR> __device__ __forceinline__ void consumers_arrive()
{
  asm volatile("bar.arrive %0, %1;" ::"n"(BAR), "n"((int)CONSUMER_WARPGROUPS * WARPGROUP_THREADS) : "memory");
}
#endif

// ---- the kernel ----

// Shared memory of a CTA: the ring's stages, the second warpgroup's sums, the ring's barriers. Tiles of fewer
// than 64 weight rows are multiplied as 64, which reads up to 7 KB past them. Fewer than NB tokens are
// multiplied as NB, which reads up to 1 KB past them. The sums always have at least that much room.
template <int NB> struct skinny_shape {
  static constexpr uint32_t SUMS = NB / 2, SUM_BYTES = SUMS * WARPGROUP_THREADS * 4 < 8192
                                                           ? 8192
                                                           : SUMS * WARPGROUP_THREADS * 4;
};

// Bytes of n_k_tiles k tiles of weight rows, or of tokens.
__host__ __device__ constexpr uint32_t k_tiles_bytes(uint32_t n_k_tiles, uint32_t rows)
{
  return n_k_tiles * rows * K_TILE_ROW_BYTES;
}

#ifdef TD_HAS_WGMMA
// A stage: K_TILES k tiles of weights, then K_TILES k tiles of x.
typedef ring<0, 0, CONSUMER_WARPS> skinny_ring;

__device__ __forceinline__ void init_stages(const skinny_ring &r, uint32_t from, uint32_t to)
{
  r.init(from, to);
  fence_barrier_init();
}

// The producer of weights: loads the CTA's weights, stage after stage.
struct weight_producer {
  skinny_ring ring;
  uint32_t i, n, tile, k_block; // i: the next of n stages; k_block: which k block of `tile` it holds

  template <int K_TILES>
  __device__ __forceinline__ void next(const CUtensorMap *map, const skinny_args &a, uint64_t policy)
  {
    ring.expect(ring.bytes); // includes the bytes of x
    tma_load_once(ring.data(), map, ring.full(), tile * a.tile_rows, k_block * K_TILES, policy);
    if (++k_block == a.n_k_blocks) {
      k_block = 0;
      tile += gridDim.x;
    }
    ring.advance();
    i++;
  }

  // Loads the stages before `end`, which are empty. Not unrolled: short code is fetched faster when a CTA
  // begins.
  template <int K_TILES>
  __device__ __forceinline__ void fill(uint32_t end, const CUtensorMap *map, const skinny_args &a)
  {
    uint64_t policy = read_once_policy();
#pragma unroll 1
    while (i < min(n, end))
      next<K_TILES>(map, a, policy);
  }

  // Loads all other stages.
  template <int K_TILES> __device__ __forceinline__ void run(const CUtensorMap *map, const skinny_args &a)
  {
    uint64_t policy = read_once_policy();
    while (i < n) {
      ring.acquire();
      next<K_TILES>(map, a, policy);
    }
  }
};

// The producer of x.
template <int K_TILES>
__device__ __forceinline__ void load_x(const CUtensorMap *map, const skinny_args &a, skinny_ring ring,
                                       uint32_t weight_bytes, uint32_t n_loads)
{
  uint32_t k_block = 0;
  fence_global_writes(); // x was written with ordinary stores
  for (uint32_t i = 0; i < n_loads; i++) {
    ring.acquire();
    tma_load(ring.data() + weight_bytes, map, ring.full(), 0, k_block * K_TILES);
    if (++k_block == a.n_k_blocks)
      k_block = 0;
    ring.advance();
  }
}

// Loads the old values of out where this thread will store, before the sums are complete. Indexes past the
// end are clamped to the tile's last element: with branches, each load would wait for the one before.
template <int NB, typename OUT>
__device__ __forceinline__ void load_residual(OUT (&residual)[NB / 2], const skinny_args &a, uint32_t tile)
{
#pragma unroll
  for (uint32_t k = 0; k < NB / 2; k++) {
    uint32_t r = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + k / 2 % 2 * 8,
             token = k / 4 * 8 + threadIdx.x % 4 * 2 + k % 2;
    uint32_t row = min(tile * a.tile_rows + min(r, a.tile_rows - 1), a.n_out - 1);
    residual[k] = ((const OUT *)a.out)[(size_t)min(token, a.n - 1) * a.n_out + row];
  }
}

template <int NB, typename OUT>
__device__ __forceinline__ void store_tile(const float (&d)[NB / 2], const float *peer_sums,
                                           const OUT (&residual)[NB / 2], const skinny_args &a, uint32_t tile)
{
  uint32_t thread = threadIdx.x, g = thread % 32 / 4, t = thread % 4;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t r = thread / 32 * 16 + g + 8 * h, row = tile * a.tile_rows + r;
    if (r >= a.tile_rows || row >= a.n_out)
      continue;
    float bias = a.bias ? __bfloat162float(a.bias[row]) : 0.0f;
    OUT *dst = (OUT *)a.out + row;
#pragma unroll
    for (int i = 0; i < NB / 4; i++) {
      uint32_t token = i / 2 * 8 + 2 * t + i % 2, k = i / 2 * 4 + 2 * h + i % 2;
      if (token < a.n)
        dst[(size_t)token * a.n_out] = (OUT)(d[k] + peer_sums[k * WARPGROUP_THREADS + thread] + bias +
                                             (a.add ? (float)residual[k] : 0.0f));
    }
  }
}
#endif

template <int K_TILES, int NB, typename OUT>
__global__ void __launch_bounds__(SKINNY_THREADS, 1)
    skinny_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                  const skinny_args a)
{
#ifdef TD_HAS_WGMMA
  typedef skinny_shape<NB> shape;
  extern __shared__ __align__(1024) unsigned char skinny_memory[];
  const uint32_t weight_bytes = k_tiles_bytes(K_TILES, a.tile_rows);
  const uint32_t stage_bytes = weight_bytes + k_tiles_bytes(K_TILES, a.x_rows);
  float *sums = (float *)(skinny_memory + a.n_stages * stage_bytes);
  skinny_ring ring;
  const uint32_t base = shared_address(skinny_memory);
  ring.place(base, base + a.n_stages * stage_bytes + shape::SUM_BYTES, a.n_stages, stage_bytes);
  uint32_t n_tiles = (a.n_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x, n_loads = n_tiles * a.n_k_blocks;

  // prologue
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(&w_map);
    prefetch_map(&x_map);
  }
  weight_producer weights = {ring.as_producer(), 0, n_loads, blockIdx.x, 0};
  if (threadIdx.x == WEIGHT_PRODUCER) { // requests the first weights as soon as their barriers exist
    init_stages(ring, 0, 1);
    weights.fill<K_TILES>(1, &w_map, a);
    init_stages(ring, 1, a.n_stages);
    weights.fill<K_TILES>(a.n_stages, &w_map, a);
  }
  __syncthreads();
  if (threadIdx.x == WEIGHT_PRODUCER)
    weights.run<K_TILES>(&w_map, a);
  pdl_wait();
  if (threadIdx.x == X_PRODUCER)
    load_x<K_TILES>(&x_map, a, ring.as_producer(), weight_bytes, n_loads);
  if (threadIdx.x >= WEIGHT_PRODUCER)
    return;

  // consumers
  float d[NB / 2] = {};
  OUT residual[NB / 2];
  uint32_t warpgroup = threadIdx.x / WARPGROUP_THREADS;
  bool leads = threadIdx.x % 32 == 0;
  for (uint32_t tile = blockIdx.x; tile < a.n_tiles; tile += gridDim.x) {
    uint32_t before = 0; // the stage that wgmmas in flight still read
    if (a.add && warpgroup == 0)
      load_residual<NB, OUT>(residual, a, tile);
    for (uint32_t k_block = 0; k_block < a.n_k_blocks; k_block++) { // main loop
      ring.wait_full();
      wgmma_fence();
#pragma unroll
      for (int c = 0; c < K_TILES / CONSUMER_WARPGROUPS; c++)
#pragma unroll
        for (int k = 0; k < K_TILE / 16; k++) {
          uint32_t k_tile = c * CONSUMER_WARPGROUPS + warpgroup;
          wgmma_ss(d, descriptor(ring.data() + k_tile * a.tile_rows * K_TILE_ROW_BYTES + k * 32),
                   descriptor(ring.data() + weight_bytes + k_tile * a.x_rows * K_TILE_ROW_BYTES + k * 32),
                   (k_block | c | k) != 0);
        }
      wgmma_commit();
      if (k_block > 0) {
        wgmma_wait<1>();
        if (leads)
          ring.release(before);
      }
      before = ring.now.index;
      ring.advance();
    }
    wgmma_wait<0>();
    wgmma_fence_operand(d);
    if (leads)
      ring.release(before);
    // epilogue: the second warpgroup passes its sums to the first, which stores
    if (warpgroup == 1) {
      if (tile != blockIdx.x) // wait until the last tile's sums have been read
        consumers_sync<2>();
#pragma unroll
      for (int i = 0; i < NB / 2; i++)
        sums[i * WARPGROUP_THREADS + threadIdx.x % WARPGROUP_THREADS] = d[i];
      consumers_arrive<1>();
    } else {
      consumers_sync<1>();
      store_tile<NB, OUT>(d, sums, residual, a, tile);
      if (tile + gridDim.x < a.n_tiles)
        consumers_arrive<2>();
    }
  }
#endif
}

// ---- host side ----

typedef void (*skinny_function)(CUtensorMap, CUtensorMap, skinny_args);

// RING_BYTES is more than half of an SM's shared memory, so two CTAs never share an SM. If one SM had two and
// another none, both CTAs would load at half the speed. With more than SKINNY_ROWS_MAX tokens cuBLASLt is as
// fast.
enum {
  N_WIDTHS = 2,
  RING_BYTES = 200 << 10,
  SKINNY_ROWS_MAX = 32,
  K_TILES_FEW = 2,
  K_TILES_MANY = 4,
  TALL_TILE_ROWS = 48
};
static const uint32_t widths[N_WIDTHS] = {16, 32};

struct skinny_variant {
  skinny_function f;
  uint32_t k_tiles, sum_bytes;
};

template <int K_TILES, int NB> static skinny_variant variant_of(bool f32)
{
  return {f32 ? (skinny_function)skinny_kernel<K_TILES, NB, float>
              : (skinny_function)skinny_kernel<K_TILES, NB, bf16>,
          K_TILES, skinny_shape<NB>::SUM_BYTES};
}

template <int K_TILES> static skinny_variant variant_of_width(uint32_t width, bool f32)
{
  return width == 16 ? variant_of<K_TILES, 16>(f32) : variant_of<K_TILES, 32>(f32);
}

static skinny_variant variant(uint32_t k_tiles, uint32_t width, bool f32)
{
  return k_tiles == K_TILES_FEW ? variant_of_width<K_TILES_FEW>(width, f32)
                                : variant_of_width<K_TILES_MANY>(width, f32);
}

bool td_skinny_encode_map(cuda_backend *b, CUtensorMap *map, td_dtype type, uint32_t rank, const void *data,
                          const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box)
{
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  TD_BUG_ON(type != TD_BF16); // the callers' boxes and swizzles assume it
  return ((uintptr_t)data & 15) == 0 &&
         b->linears.encode_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, (void *)data, dims, strides, box,
                               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Encodes data[n_rows, n_cols] as boxes of box_rows rows x k_tiles * 64 columns. Rows and columns past the
// end read as zero.
static bool encode(cuda_backend *b, CUtensorMap *map, td_dtype type, const void *data, uint32_t n_rows,
                   uint32_t n_cols, uint32_t box_rows, uint32_t k_tiles)
{
  const cuuint64_t dims[3] = {K_TILE, n_rows, n_cols / K_TILE},
                   strides[2] = {n_cols * td_dtypes[type].block_bytes, K_TILE_ROW_BYTES};
  const cuuint32_t box[3] = {K_TILE, box_rows, k_tiles};
  return td_skinny_encode_map(b, map, type, 3, data, dims, strides, box);
}

td_status td_skinny_open(cuda_backend *b, td_error *err)
{
  int smem_bytes = 0;
  cudaFuncAttributes attributes = {};
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  void *encode_function = nullptr;
  if (!b->device.has_wgmma)
    return TD_OK;
  cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode_function, 12000,
                                                   cudaEnableDefault, &found);
  if (e != cudaSuccess || found != cudaDriverEntryPointSuccess)
    return TD_OK;
  e = cudaDeviceGetAttribute(&smem_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, b->device.id);
  for (uint32_t k_tiles = K_TILES_FEW; k_tiles <= K_TILES_MANY; k_tiles += K_TILES_MANY - K_TILES_FEW)
    for (uint32_t width : widths)
      for (int f32 = 0; f32 < 2 && e == cudaSuccess; f32++) {
        skinny_function f = variant(k_tiles, width, f32).f;
        e = cudaFuncGetAttributes(&attributes, f);
        if (e == cudaSuccess)
          e = cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   smem_bytes - (int)attributes.sharedSizeBytes);
      }
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "kernels for few rows");
  b->linears.encode_map = (encode_tensor_map)encode_function;
  return TD_OK;
}

uint32_t td_skinny_tile_rows(uint32_t n_out, uint32_t n_sms, uint32_t unit, uint32_t most)
{
  enum { TILE_COST_ROWS = 4 };
  uint32_t best = most, best_cost = UINT32_MAX;
  for (uint32_t h = most; h >= unit; h -= unit) {
    uint32_t n_tiles = (n_out + h - 1) / h, cost = (n_tiles + n_sms - 1) / n_sms * (h + TILE_COST_ROWS);
    if (cost < best_cost) {
      best_cost = cost;
      best = h;
    }
  }
  return best;
}

void td_skinny_plan_weight(cuda_backend *b, td_cuda_weight *w)
{
  td_skinny_plan *p = &w->skinny;
  if (!b->linears.encode_map || !is_of_type(w, TD_BF16, TD_BF16) || w->n_in % K_TILE != 0)
    return;
  uint32_t rows = td_skinny_tile_rows(w->n_out, (uint32_t)b->device.n_sms, 8, TILE_ROWS_MAX),
           k_tiles = rows > TALL_TILE_ROWS ? K_TILES_FEW : K_TILES_MANY;
  if (encode(b, &p->map, w->types[0].storage, w->data, w->n_out, w->n_in, rows, k_tiles)) {
    p->tile_rows = rows;
    p->stage_k_tiles = k_tiles;
  }
}

uint32_t td_skinny_rows_max(const td_cuda_weight *w) { return w->skinny.tile_rows > 0 ? SKINNY_ROWS_MAX : 0; }

bool td_skinny_linear(cuda_backend *b, const params_with_rows<td_linear_params> *p)
{
  const td_cuda_weight *w = cuda_weight(p->weight);
  const td_skinny_plan *plan = &w->skinny;
  CUtensorMap x_map;
  uint32_t width = p->n <= 16 ? 16 : 32, x_rows = (p->n + 7) / 8 * 8;
  if (p->n > td_skinny_rows_max(w) ||
      !encode(b, &x_map, TD_BF16, at<void>(p->x), p->n, w->n_in, x_rows, plan->stage_k_tiles))
    return false;
  skinny_variant v = variant(plan->stage_k_tiles, width, p->out_f32);
  uint32_t stage_bytes = k_tiles_bytes(v.k_tiles, plan->tile_rows + x_rows) + 2 * 8;
  skinny_args a = {};
  a.bias = w->bias;
  a.out = at<void>(p->out);
  a.add = p->add;
  a.n = p->n;
  a.n_out = w->n_out;
  a.tile_rows = plan->tile_rows;
  a.x_rows = x_rows;
  a.n_tiles = (w->n_out + a.tile_rows - 1) / a.tile_rows;
  a.n_k_blocks = (w->n_in / K_TILE + v.k_tiles - 1) / v.k_tiles;
  a.n_stages = RING_BYTES / stage_bytes;
  queue_kernel(&b->device, v.f, dim3(std::min(a.n_tiles, (uint32_t)b->device.n_sms)), SKINNY_THREADS,
               a.n_stages * stage_bytes + v.sum_bytes, plan->map, x_map, a);
  return true;
}
