// GEMMs of 9 to 128 tokens followed by SwiGLU on sm_90a. Their time is that of reading the weights once.
//
// Every tile must load the tokens anew, so a tile has enough weight rows to make the tokens a small part of
// what it loads. Weight rows are the M side of wgmma, tokens the N side. A CTA goes through its tiles. One
// producer thread keeps a ring of k tiles of weights full, across tiles and already before the kernels before
// have ended. Another loads the k tiles of x that go with them. Two consumer warpgroups multiply: each has 64
// rows of gate and the same 64 rows of up, so SwiGLU needs no exchange between threads.
//
// Rows past a tile's end and tokens past n are multiplied too and dropped: the tensor cores have time to
// spare. Every sum is one ascending chain over k: on this path a token gets the same bits in every batch.
#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/swiglu.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <algorithm>

enum {
  CONSUMER_WARPGROUPS = 2, // consumer warpgroups
  WARPGROUP_THREADS = 128,
  WEIGHT_PRODUCER = CONSUMER_WARPGROUPS * WARPGROUP_THREADS, // number of a thread
  X_PRODUCER = WEIGHT_PRODUCER + 32,                         // number of a thread
  SKINNY_SWIGLU_THREADS = WEIGHT_PRODUCER + 64,
  CONSUMER_WARPS = CONSUMER_WARPGROUPS * WARPGROUP_THREADS / 32,
  BLOCK_ROWS = 64,                                          // weight rows of a warpgroup's wgmma
  HALF_ROWS_MAX = CONSUMER_WARPGROUPS * BLOCK_ROWS,         // rows of gate, and of up
  CHUNK = 8,                                                // elements of out in one store
  OUT_ROW_BYTES = BLOCK_ROWS * 2,                           // one token's results of one warpgroup
  READ_PAST_RING_BYTES = BLOCK_ROWS * 2 * K_TILE_ROW_BYTES, // the most that wgmma reads past the last stage
};

// A tile has half_rows rows of gate and as many of up: weight rows r and width + r.
struct skinny_swiglu_args {
  bf16 *out; // [n, width]
  uint32_t n, width;
  uint32_t half_rows, n_tiles;
  uint32_t x_rows; // tokens that are loaded: n rounded up to a multiple of 8
  uint32_t n_k_tiles, n_stages;
};

// Bytes after the stages: wgmma may read them, and the epilogue keeps results there.
__host__ __device__ constexpr uint32_t bytes_after_ring(uint32_t nb)
{
  return CONSUMER_WARPGROUPS * nb * OUT_ROW_BYTES > READ_PAST_RING_BYTES
             ? CONSUMER_WARPGROUPS * nb * OUT_ROW_BYTES
             : READ_PAST_RING_BYTES;
}

__host__ __device__ constexpr uint32_t stage_bytes_of(uint32_t half_rows, uint32_t x_rows)
{
  return (2 * half_rows + x_rows) * K_TILE_ROW_BYTES;
}

#ifdef TD_HAS_WGMMA
// A stage: a k tile of the weights, then a k tile of x.
typedef ring<0, 0, CONSUMER_WARPS> skinny_swiglu_ring;

// Descriptor of a K-major operand with 128-byte rows swizzled by TMA: groups of 8 rows are 1024 bytes apart.
// k: in units of 16 columns.
__device__ __forceinline__ uint64_t descriptor(uint32_t address16, uint32_t k)
{
  return wgmma_descriptor(address16 + k * 2, 16, 1024);
}

__device__ __forceinline__ void warpgroup_sync(uint32_t warpgroup)
{
  asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup), "n"((int)WARPGROUP_THREADS) : "memory");
}

__device__ __forceinline__ void load_weights(const CUtensorMap *map, const skinny_swiglu_args &a,
                                             skinny_swiglu_ring ring)
{
  uint64_t policy = read_once_policy();
  for (uint32_t tile = blockIdx.x; tile < a.n_tiles; tile += gridDim.x)
    for (uint32_t k_tile = 0; k_tile < a.n_k_tiles; k_tile++) {
      ring.acquire();
      ring.expect(ring.bytes); // includes the bytes of x
      tma_load_halves_once(ring.data(), map, ring.full(), tile * a.half_rows, k_tile, policy);
      ring.advance();
    }
}

__device__ __forceinline__ void load_x(const CUtensorMap *map, const skinny_swiglu_args &a,
                                       skinny_swiglu_ring ring)
{
  const uint32_t weight_bytes = 2 * a.half_rows * K_TILE_ROW_BYTES;
  fence_global_writes(); // x was written with ordinary stores
  for (uint32_t tile = blockIdx.x; tile < a.n_tiles; tile += gridDim.x)
    for (uint32_t k_tile = 0; k_tile < a.n_k_tiles; k_tile++) {
      ring.acquire();
      tma_load(ring.data() + weight_bytes, map, ring.full(), 0, k_tile);
      ring.advance();
    }
}

// The main loop: gate, up = the warpgroup's rows of each. A stage is released when its wgmmas are done, which
// is after the next stage's wgmmas were queued.
template <int NB>
__device__ __forceinline__ void multiply(float (&gate)[NB / 2], float (&up)[NB / 2], skinny_swiglu_ring &ring,
                                         const skinny_swiglu_args &a, uint32_t warpgroup)
{
  const uint32_t half16 = a.half_rows * K_TILE_ROW_BYTES >> 4;
  uint32_t before = 0;
  bool leads = threadIdx.x % 32 == 0;
  for (uint32_t k_tile = 0; k_tile < a.n_k_tiles; k_tile++) {
    uint32_t w16 = warp_uniform((ring.data() + warpgroup * BLOCK_ROWS * K_TILE_ROW_BYTES) >> 4),
             x16 = warp_uniform((ring.data() >> 4) + 2 * half16);
    ring.wait_full();
    wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < K_TILE / 16; k++) {
      wgmma_ss(gate, descriptor(w16, k), descriptor(x16, k), (k_tile | k) != 0);
      wgmma_ss(up, descriptor(w16 + half16, k), descriptor(x16, k), (k_tile | k) != 0);
    }
    wgmma_commit();
    if (k_tile > 0) {
      wgmma_wait<1>();
      if (leads)
        ring.release(before);
    }
    before = ring.now.index;
    ring.advance();
  }
  wgmma_wait<0>();
  wgmma_fence_operand(gate);
  wgmma_fence_operand(up);
  if (leads)
    ring.release(before);
}

// The epilogue: SwiGLU through the warpgroup's own shared memory, [token][64] with swizzled 16-byte chunks.
template <int NB>
__device__ __forceinline__ void store_tile(const float (&gate)[NB / 2], const float (&up)[NB / 2],
                                           unsigned char *results, const skinny_swiglu_args &a, uint32_t tile,
                                           uint32_t warpgroup)
{
  const uint32_t thread = threadIdx.x % WARPGROUP_THREADS, warp = thread / 32, lane = thread % 32;
  const uint32_t first = warpgroup * BLOCK_ROWS, column = tile * a.half_rows + first;
  const uint32_t n_rows = a.half_rows > first ? min(a.half_rows - first, (uint32_t)BLOCK_ROWS) : 0,
                 n_here = a.width > column ? min(n_rows, a.width - column) : 0;
  warpgroup_sync(warpgroup); // wait until the last tile's results have been read
#pragma unroll
  for (int j = 0; j < NB / 8; j += 2) { // 8 tokens each
    uint32_t v[4];
#pragma unroll
    for (int m = 0; m < 4; m++) {
      int i = 4 * (j + m / 2) + 2 * (m % 2);
      __nv_bfloat162 two =
          __floats2bfloat162_rn(swiglu_one(gate[i], up[i]), swiglu_one(gate[i + 1], up[i + 1]));
      v[m] = *(uint32_t *)&two;
    }
    uint32_t token = (j + lane / 16) * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
    stmatrix_x4_trans(shared_address(results) + token * OUT_ROW_BYTES + ((chunk ^ (token & 7)) * 16), v);
  }
  warpgroup_sync(warpgroup);
  for (uint32_t i = thread; i < a.n * (BLOCK_ROWS / CHUNK); i += WARPGROUP_THREADS) {
    uint32_t token = i / (BLOCK_ROWS / CHUNK), chunk = i % (BLOCK_ROWS / CHUNK);
    if (chunk * CHUNK < n_here)
      *(uint4 *)(a.out + (size_t)token * a.width + column + chunk * CHUNK) =
          *(const uint4 *)(results + token * OUT_ROW_BYTES + ((chunk ^ (token & 7)) * 16));
  }
}
#endif

template <int NB>
__global__ void __launch_bounds__(SKINNY_SWIGLU_THREADS, 1)
    skinny_swiglu_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                         const skinny_swiglu_args a)
{
#ifdef TD_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char skinny_swiglu_memory[];
  const uint32_t stage_bytes = stage_bytes_of(a.half_rows, a.x_rows),
                 base = shared_address(skinny_swiglu_memory);
  unsigned char *results =
      skinny_swiglu_memory + a.n_stages * stage_bytes; // wgmma may read here, past the last stage
  skinny_swiglu_ring ring;
  ring.place(base, base + a.n_stages * stage_bytes + bytes_after_ring(NB), a.n_stages, stage_bytes);
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(&w_map);
    prefetch_map(&x_map);
    ring.init(0, a.n_stages);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x == WEIGHT_PRODUCER) // weights do not depend on earlier kernels
    load_weights(&w_map, a, ring.as_producer());
  pdl_wait();
  if (threadIdx.x == X_PRODUCER)
    load_x(&x_map, a, ring.as_producer());
  if (threadIdx.x >= WEIGHT_PRODUCER)
    return;
  const uint32_t warpgroup = warp_uniform(threadIdx.x / WARPGROUP_THREADS);
  for (uint32_t tile = blockIdx.x; tile < a.n_tiles; tile += gridDim.x) {
    float gate[NB / 2], up[NB / 2];
    multiply<NB>(gate, up, ring, a, warpgroup);
    store_tile<NB>(gate, up, results + warpgroup * NB * OUT_ROW_BYTES, a, tile, warpgroup);
  }
#endif
}

// ---- host side ----

typedef void (*skinny_swiglu_function)(CUtensorMap, CUtensorMap, skinny_swiglu_args);

// RING_BYTES is more than half of an SM's shared memory, so two CTAs never share an SM.
enum { SKINNY_SWIGLU_ROWS_MIN = 9, SKINNY_SWIGLU_ROWS_MAX = 128, RING_BYTES = 192 << 10 };
static const uint32_t widths[] = {32, 64, 96, 128};

static skinny_swiglu_function function_of(uint32_t nb)
{
  return nb == 32   ? skinny_swiglu_kernel<32>
         : nb == 64 ? skinny_swiglu_kernel<64>
         : nb == 96 ? skinny_swiglu_kernel<96>
                    : skinny_swiglu_kernel<128>;
}

td_status td_skinny_swiglu_open(cuda_backend *b, td_error *err)
{
  int smem_bytes = 0;
  if (!b->linears.encode_map || b->config.batch_invariant)
    return TD_OK;
  cudaError_t e = cudaDeviceGetAttribute(&smem_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, b->device.id);
  for (uint32_t nb : widths)
    if (e == cudaSuccess)
      e = cudaFuncSetAttribute(function_of(nb), cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "kernels for tall tiles");
  b->linears.has_skinny_swiglu = true;
  return TD_OK;
}

static uint32_t rows_of_half(const cuda_backend *b, uint32_t width)
{
  return td_skinny_tile_rows(width, (uint32_t)b->device.n_sms, CHUNK, HALF_ROWS_MAX);
}

static bool can_serve(const cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p)
{
  const td_cuda_weight *w = cuda_weight(p->weight);
  return b->linears.has_skinny_swiglu && is_of_type(w, TD_BF16, TD_BF16) && !w->bias &&
         w->n_in % K_TILE == 0 && p->width % CHUNK == 0 && p->n >= SKINNY_SWIGLU_ROWS_MIN &&
         p->n <= SKINNY_SWIGLU_ROWS_MAX;
}

// If tiles are so short that they load more x than weights, two ops are faster.
bool td_skinny_swiglu_is_faster(const cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p)
{
  return can_serve(b, p) && rows_of_half(b, p->width) >= BLOCK_ROWS;
}

bool td_skinny_swiglu_linear(cuda_backend *b, const params_with_rows<td_linear_swiglu_params> *p, bool forced)
{
  if (!can_serve(b, p) || !(forced || td_skinny_swiglu_is_faster(b, p)))
    return false;
  const td_cuda_weight *w = cuda_weight(p->weight);
  const uint32_t nb = (p->n + 31) / 32 * 32, rows = rows_of_half(b, p->width), n_k_tiles = w->n_in / K_TILE;
  skinny_swiglu_args a = {at<bf16>(p->out), p->n, p->width, rows};
  a.n_tiles = (p->width + rows - 1) / rows;
  a.x_rows = (p->n + 7) / 8 * 8;
  a.n_k_tiles = n_k_tiles;
  const uint32_t stage_bytes = stage_bytes_of(rows, a.x_rows);
  a.n_stages = (RING_BYTES + READ_PAST_RING_BYTES - bytes_after_ring(nb)) / stage_bytes;
  const cuuint64_t row_bytes = (cuuint64_t)w->n_in * sizeof(bf16);
  const cuuint64_t w_dims[4] = {K_TILE, p->width, 2, n_k_tiles},
                   w_strides[3] = {row_bytes, row_bytes * p->width, K_TILE_ROW_BYTES};
  const cuuint64_t x_dims[3] = {K_TILE, p->n, n_k_tiles}, x_strides[2] = {row_bytes, K_TILE_ROW_BYTES};
  const cuuint32_t w_box[4] = {K_TILE, rows, 2, 1}, x_box[3] = {K_TILE, a.x_rows, 1};
  CUtensorMap w_map, x_map;
  if (!td_skinny_encode_map(b, &w_map, w->types[0].storage, 4, w->data, w_dims, w_strides, w_box) ||
      !td_skinny_encode_map(b, &x_map, TD_BF16, 3, at<void>(p->x), x_dims, x_strides, x_box))
    return false;
  queue_kernel(&b->device, function_of(nb), dim3(std::min(a.n_tiles, (uint32_t)b->device.n_sms)),
               SKINNY_SWIGLU_THREADS, a.n_stages * (stage_bytes + 2 * 8) + bytes_after_ring(nb), w_map, x_map,
               a);
  return true;
}
