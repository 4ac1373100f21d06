// Products of 9 to 32 rows on sm_90a (fewer, and in fused steps up to 16: fused_product.cu): bound by reading the weights once, so built to keep memory busy, also
// between products.
//
// A block owns whole rows of the weight: tiles of up to 64 rows, whose height is chosen so that all multiprocessors get about
// the same. One thread keeps a ring of shared memory full of weights by TMA, another fetches the pieces of x that go with them,
// and two warpgroups multiply: weight rows are the M side of wgmma, rows of x its N side, padded to 16 or 32. A tile
// of fewer than 64 rows is multiplied as 64, fewer rows of x as that many, and what comes of the rest is dropped: the tensor cores have
// time. Of x only the rows that there are, up to a multiple of 8, are fetched: at 24 rows a third more would cost up to 8 %.
// Weights depend on nothing, so a block fills its ring before it waits for the kernels before it; the ring is so large that a
// block has a multiprocessor for itself, and the next product's begin to load as soon as this one's end.
// How a sum is ordered does not depend on n: a row of x gives the same bits in every batch on this path.
#include "kernels/cuda/internal.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <algorithm>

enum {
  GROUPS = 2, // that multiply: each takes half of a stage's columns
  GROUP_THREADS = 128,
  STREAM_THREADS = GROUPS * GROUP_THREADS + 64,
  TILE_ROWS_MAX = 64,
  SLICE_K = 64, // 128 bytes: the swizzle's width
  SLICE_ROW_BYTES = SLICE_K * 2,
};

struct stream_args {
  const bf16 *bias;
  void *out;
  bool add; // to what out holds
  uint32_t n, n_out;
  uint32_t tile_rows, n_tiles;
  uint32_t x_rows; // fetched: n, and up to a multiple of 8
  uint32_t n_parts; // of SLICES x 64 columns: what a stage holds of a tile
  uint32_t n_stages;
};

// ---- device helpers ----

#ifdef TD_HAS_WGMMA
// K-major, 128-byte rows swizzled by TMA: groups of 8 rows 1024 bytes apart.
__device__ __forceinline__ uint64_t operand(uint32_t address) { return wgmma_operand(address >> 4, 16, 1024); }

template <int BAR> __device__ __forceinline__ void groups_sync()
{
  asm volatile("bar.sync %0, %1;" ::"n"(BAR), "n"((int)GROUPS * GROUP_THREADS) : "memory");
}

template <int BAR> __device__ __forceinline__ void groups_arrive()
{
  asm volatile("bar.arrive %0, %1;" ::"n"(BAR), "n"((int)GROUPS * GROUP_THREADS) : "memory");
}
#endif

// ---- the kernel ----

// Shared memory of a block: the ring, the second group's sums, two barriers a stage. A tile of fewer rows is multiplied as
// 64, which reads up to 7 KB behind it, and x of fewer than NB rows as so many, up to 1 KB: the sums' place is never smaller.
template <int NB> struct stream_shape {
  static constexpr uint32_t SUMS = NB / 2, SUM_BYTES = SUMS * GROUP_THREADS * 4 < 8192 ? 8192 : SUMS * GROUP_THREADS * 4;
};

// Of a stage: so many rows of the weight, or of x.
__host__ __device__ constexpr uint32_t slices_bytes(uint32_t n_slices, uint32_t rows) { return n_slices * rows * SLICE_ROW_BYTES; }

#ifdef TD_HAS_WGMMA
struct stream_ring {
  uint32_t base, stage_bytes, weight_bytes, n_stages;
  uint32_t filled, emptied; // barriers
  __device__ uint32_t stage(uint32_t s) const { return base + s * stage_bytes; }
};

__device__ __forceinline__ void make_stages(const stream_ring &r, uint32_t from, uint32_t to)
{
#pragma unroll 4
  for (uint32_t s = from; s < to; s++) {
    barrier_init(r.filled + s * 8, 1);
    barrier_init(r.emptied + s * 8, GROUPS * GROUP_THREADS / 32);
  }
  fence_barrier_init();
}

// The weights that a block reads, part after part.
struct stream_fetches {
  uint32_t i, n, tile, part;
  uint32_t s, turn; // where in the ring

  template <int SLICES>
  __device__ __forceinline__ void next(const CUtensorMap *map, const stream_args &a, const stream_ring &r, uint64_t policy)
  {
    barrier_expect(r.filled + s * 8, r.stage_bytes);
    fetch_once(r.stage(s), map, r.filled + s * 8, tile * a.tile_rows, part * SLICES, policy);
    if (++part == a.n_parts) {
      part = 0;
      tile += gridDim.x;
    }
    if (++s == r.n_stages) {
      s = 0;
      turn ^= 1;
    }
    i++;
  }

  // The first of the stages before `end`, which nobody has to give back. Not unrolled: little code is there sooner where a block begins.
  template <int SLICES>
  __device__ __forceinline__ void fill(uint32_t end, const CUtensorMap *map, const stream_args &a, const stream_ring &r)
  {
    uint64_t policy = read_once_policy();
#pragma unroll 1
    while (i < min(n, end))
      next<SLICES>(map, a, r, policy);
  }

  // All others.
  template <int SLICES> __device__ __forceinline__ void run(const CUtensorMap *map, const stream_args &a, const stream_ring &r)
  {
    uint64_t policy = read_once_policy();
    while (i < n) {
      barrier_wait(r.emptied + s * 8, turn ^ 1);
      next<SLICES>(map, a, r, policy);
    }
  }
};

template <int SLICES>
__device__ __forceinline__ void fetch_x(const CUtensorMap *map, const stream_args &a, const stream_ring &r, uint32_t n_fetches)
{
  uint32_t part = 0;
  fence_global_writes(); // x was written by ordinary stores
  for (uint32_t i = 0, s = 0, turn = 0; i < n_fetches; i++) {
    barrier_wait(r.emptied + s * 8, turn ^ 1);
    fetch(r.stage(s) + r.weight_bytes, map, r.filled + s * 8, 0, part * SLICES);
    if (++part == a.n_parts)
      part = 0;
    if (++s == r.n_stages) {
      s = 0;
      turn ^= 1;
    }
  }
}

// What out holds where this thread will store, asked for before the sums are there. A place that is none stands for the last one of the
// tile: with branches, each load would be waited for before the next.
template <int NB, typename OUT> __device__ __forceinline__ void load_tile(OUT (&held)[NB / 2], const stream_args &a, uint32_t tile)
{
#pragma unroll
  for (uint32_t k = 0; k < NB / 2; k++) {
    uint32_t r = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + k / 2 % 2 * 8, token = k / 4 * 8 + threadIdx.x % 4 * 2 + k % 2;
    uint32_t row = min(tile * a.tile_rows + min(r, a.tile_rows - 1), a.n_out - 1);
    held[k] = ((const OUT *)a.out)[(size_t)min(token, a.n - 1) * a.n_out + row];
  }
}

template <int NB, typename OUT>
__device__ __forceinline__ void store_tile(const float (&d)[NB / 2], const float *others, const OUT (&held)[NB / 2], const stream_args &a,
                                           uint32_t tile)
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
        dst[(size_t)token * a.n_out] = (OUT)(d[k] + others[k * GROUP_THREADS + thread] + bias + (a.add ? (float)held[k] : 0.0f));
    }
  }
}
#endif

template <int SLICES, int NB, typename OUT>
__global__ void __launch_bounds__(STREAM_THREADS, 1)
    stream_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, const stream_args a)
{
#ifdef TD_HAS_WGMMA
  typedef stream_shape<NB> shape;
  extern __shared__ __align__(1024) unsigned char stream_memory[];
  stream_ring r;
  r.base = (uint32_t)__cvta_generic_to_shared(stream_memory);
  r.weight_bytes = slices_bytes(SLICES, a.tile_rows);
  r.stage_bytes = r.weight_bytes + slices_bytes(SLICES, a.x_rows);
  r.n_stages = a.n_stages;
  r.filled = r.base + a.n_stages * r.stage_bytes + shape::SUM_BYTES;
  r.emptied = r.filled + a.n_stages * 8;
  float *sums = (float *)(stream_memory + a.n_stages * r.stage_bytes);
  uint32_t n_tiles = (a.n_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x, n_fetches = n_tiles * a.n_parts;
  let_next_start();
  if (threadIdx.x == 0) {
    read_map(&w_map);
    read_map(&x_map);
  }
  stream_fetches fetches = {0, n_fetches, blockIdx.x, 0, 0, 0};
  if (threadIdx.x == GROUPS * GROUP_THREADS) { // the first weights are asked for when only their barriers are made
    make_stages(r, 0, 1);
    fetches.fill<SLICES>(1, &w_map, a, r);
    make_stages(r, 1, a.n_stages);
    fetches.fill<SLICES>(a.n_stages, &w_map, a, r);
  }
  __syncthreads();
  if (threadIdx.x == GROUPS * GROUP_THREADS)
    fetches.run<SLICES>(&w_map, a, r);
  wait_for_input();
  if (threadIdx.x == GROUPS * GROUP_THREADS + 32)
    fetch_x<SLICES>(&x_map, a, r, n_fetches);
  if (threadIdx.x >= GROUPS * GROUP_THREADS)
    return;
  float d[NB / 2] = {};
  OUT held[NB / 2];
  uint32_t group = threadIdx.x / GROUP_THREADS, s = 0, turn = 0;
  bool leads = threadIdx.x % 32 == 0;
  for (uint32_t tile = blockIdx.x; tile < a.n_tiles; tile += gridDim.x) {
    uint32_t before = 0; // the stage whose products are still under way
    if (a.add && group == 0)
      load_tile<NB, OUT>(held, a, tile);
    for (uint32_t part = 0; part < a.n_parts; part++) {
      barrier_wait(r.filled + s * 8, turn);
      wgmma_begin();
#pragma unroll
      for (int c = 0; c < SLICES / GROUPS; c++)
#pragma unroll
        for (int k = 0; k < SLICE_K / 16; k++) {
          uint32_t slice = c * GROUPS + group;
          wgmma_ss(d, operand(r.stage(s) + slice * a.tile_rows * SLICE_ROW_BYTES + k * 32),
                   operand(r.stage(s) + r.weight_bytes + slice * a.x_rows * SLICE_ROW_BYTES + k * 32), (part | c | k) != 0);
        }
      wgmma_commit();
      if (part > 0) {
        wgmma_wait<1>();
        if (leads)
          barrier_arrive(r.emptied + before * 8);
      }
      before = s;
      if (++s == r.n_stages) {
        s = 0;
        turn ^= 1;
      }
    }
    wgmma_wait<0>();
    wgmma_hold(d);
    if (leads)
      barrier_arrive(r.emptied + before * 8);
    if (group == 1) {
      if (tile != blockIdx.x) // the last tile's sums have been read
        groups_sync<2>();
#pragma unroll
      for (int i = 0; i < NB / 2; i++)
        sums[i * GROUP_THREADS + threadIdx.x % GROUP_THREADS] = d[i];
      groups_arrive<1>();
    } else {
      groups_sync<1>();
      store_tile<NB, OUT>(d, sums, held, a, tile);
      if (tile + gridDim.x < a.n_tiles)
        groups_arrive<2>();
    }
  }
#endif
}

// ---- the host's side ----

typedef void (*stream_function)(CUtensorMap, CUtensorMap, stream_args);

// RING_BYTES is more than half of a multiprocessor's shared memory, so that no two blocks share one: placed by chance, two on
// one multiprocessor and none on another would load at half the speed. More rows than STREAM_ROWS_MAX are not slower by cuBLASLt.
enum { N_WIDTHS = 2, RING_BYTES = 200 << 10, STREAM_ROWS_MAX = 32, SLICES_FEW = 2, SLICES_MANY = 4, TALL_ROWS = 48 };
static const uint32_t widths[N_WIDTHS] = {16, 32};

struct stream_variant {
  stream_function f;
  uint32_t slices, sum_bytes;
};

template <int SLICES, int NB> static stream_variant variant_of(bool f32)
{
  return {f32 ? (stream_function)stream_kernel<SLICES, NB, float> : (stream_function)stream_kernel<SLICES, NB, bf16>, SLICES,
          stream_shape<NB>::SUM_BYTES};
}

template <int SLICES> static stream_variant variant_of_width(uint32_t width, bool f32)
{
  return width == 16 ? variant_of<SLICES, 16>(f32) : variant_of<SLICES, 32>(f32);
}

static stream_variant variant(uint32_t slices, uint32_t width, bool f32)
{
  return slices == SLICES_FEW ? variant_of_width<SLICES_FEW>(width, f32) : variant_of_width<SLICES_MANY>(width, f32);
}

bool td_stream_encode(cuda_backend *b, CUtensorMap *map, uint32_t rank, const void *data, const cuuint64_t *dims, const cuuint64_t *strides,
                      const cuuint32_t *box)
{
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  return ((uintptr_t)data & 15) == 0 &&
         b->stream_encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, (void *)data, dims, strides, box, steps,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// data[n_rows, n_cols] as boxes of box_rows rows x slices times 64 columns. Rows and slices past the end read as zero.
static bool encode(cuda_backend *b, CUtensorMap *map, const void *data, uint32_t n_rows, uint32_t n_cols, uint32_t box_rows,
                   uint32_t slices)
{
  const cuuint64_t dims[3] = {SLICE_K, n_rows, n_cols / SLICE_K}, strides[2] = {n_cols * sizeof(bf16), SLICE_ROW_BYTES};
  const cuuint32_t box[3] = {SLICE_K, box_rows, slices};
  return td_stream_encode(b, map, 3, data, dims, strides, box);
}

td_status td_stream_open(cuda_backend *b, td_error *err)
{
  int smem_bytes = 0;
  cudaFuncAttributes attributes = {};
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  void *encode_function = nullptr;
  if (!b->has_wgmma)
    return TD_OK;
  cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode_function, 12000, cudaEnableDefault, &found);
  if (e != cudaSuccess || found != cudaDriverEntryPointSuccess)
    return TD_OK;
  e = cudaDeviceGetAttribute(&smem_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, b->device);
  for (uint32_t slices = SLICES_FEW; slices <= SLICES_MANY; slices += SLICES_MANY - SLICES_FEW)
    for (uint32_t width : widths)
      for (int f32 = 0; f32 < 2 && e == cudaSuccess; f32++) {
        stream_function f = variant(slices, width, f32).f;
        e = cudaFuncGetAttributes(&attributes, f);
        if (e == cudaSuccess)
          e = cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes - (int)attributes.sharedSizeBytes);
      }
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "kernels for few rows");
  b->stream_encode = (stream_encode_function)encode_function;
  return TD_OK;
}

uint32_t td_stream_tile_rows(uint32_t n_out, uint32_t n_sms, uint32_t unit, uint32_t most)
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

void td_stream_plan_weight(cuda_backend *b, td_weight *w)
{
  td_stream_plan *p = &w->stream;
  if (!b->stream_encode || w->n_in % SLICE_K != 0)
    return;
  uint32_t rows = td_stream_tile_rows(w->n_out, (uint32_t)b->n_sms, 8, TILE_ROWS_MAX), slices = rows > TALL_ROWS ? SLICES_FEW : SLICES_MANY;
  if (encode(b, &p->map, w->data, w->n_out, w->n_in, rows, slices)) {
    p->tile_rows = rows;
    p->slices = slices;
  }
}

uint32_t td_stream_rows_max(const td_weight *w) { return w->stream.tile_rows > 0 ? STREAM_ROWS_MAX : 0; }

bool td_stream_linear(cuda_backend *b, const of_rows<td_linear_params> *p)
{
  const td_weight *w = p->weight;
  const td_stream_plan *plan = &w->stream;
  CUtensorMap x_map;
  uint32_t width = p->n <= 16 ? 16 : 32, x_rows = (p->n + 7) / 8 * 8;
  if (p->n > td_stream_rows_max(w) ||
      !encode(b, &x_map, at<void>(p->x), p->n, w->n_in, x_rows, plan->slices))
    return false;
  stream_variant v = variant(plan->slices, width, p->out_f32);
  uint32_t stage_bytes = slices_bytes(v.slices, plan->tile_rows + x_rows) + 2 * 8;
  stream_args a = {};
  a.bias = w->bias;
  a.out = at<void>(p->out);
  a.add = p->add;
  a.n = p->n;
  a.n_out = w->n_out;
  a.tile_rows = plan->tile_rows;
  a.x_rows = x_rows;
  a.n_tiles = (w->n_out + a.tile_rows - 1) / a.tile_rows;
  a.n_parts = (w->n_in / SLICE_K + v.slices - 1) / v.slices;
  a.n_stages = RING_BYTES / stage_bytes;
  queue_kernel(b, v.f, dim3(std::min(a.n_tiles, (uint32_t)b->n_sms)), STREAM_THREADS, a.n_stages * stage_bytes + v.sum_bytes,
               plan->map, x_map, a);
  return true;
}
