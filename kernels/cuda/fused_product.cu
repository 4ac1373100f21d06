// Products of few rows on sm_90a with what comes before and after them: see fused.cuh.
//
// As in stream_product.cu a block owns whole rows of the weight and keeps a ring of them full, also while it waits for the kernel before
// it. Eight warps multiply: weight rows are the M side of mma.sync, rows of x its N side, and the warps share the columns. wgmma
// takes shared memory at less than half the rate when N is 8, hardly more than memory gives, so that what came while a block
// waited could not be caught up with.
#include "kernels/cuda/attention_tile.cuh" // ldmatrix, mma
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh" // TD_HAS_WGMMA

#include <algorithm>

enum {
  MULTIPLIERS = 8, // warps
  FUSED_THREADS = MULTIPLIERS * 32 + 64,
  TILE_ROWS_MAX = 64,
  SLOT_WEIGHT_BYTES = 24 << 10,
  SLICES_MAX = 6, // of a slot
  SLICE_K = 64,   // 128 bytes: the swizzle's width
  SLICE_ROW_BYTES = SLICE_K * 2,
  BEGIN_THREADS = 256,
  SMEM_BYTES_MAX = 227 << 10, // of a block
};

template <int NB> struct fused_shape {
  static constexpr uint32_t SLOT_BYTES = SLOT_WEIGHT_BYTES + SLICES_MAX * NB * SLICE_ROW_BYTES;
  __host__ __device__ static constexpr uint32_t product_bytes(uint32_t tile_rows) { return MULTIPLIERS * tile_rows * (NB + 1) * 4; }
  static constexpr uint32_t slots(uint32_t tile_rows)
  {
    return (SMEM_BYTES_MAX - 1024 - product_bytes(tile_rows)) / (SLOT_BYTES + 16);
  }
  static constexpr uint32_t smem_bytes(uint32_t n_slots, uint32_t tile_rows) // and room to align
  {
    return 1024 + n_slots * (SLOT_BYTES + 16) + product_bytes(tile_rows);
  }
};

#ifdef TD_HAS_WGMMA
// ---- the ring ----

struct fused_ring {
  uint32_t base, slot_bytes, n_slots, filled, emptied; // the last two: barriers
  uint32_t s, turn;                                    // where its user is
  __device__ __forceinline__ uint32_t slot() const { return base + s * slot_bytes; }
  __device__ __forceinline__ uint32_t x() const { return slot() + SLOT_WEIGHT_BYTES; }
  __device__ __forceinline__ void advance()
  {
    if (++s == n_slots) {
      s = 0;
      turn ^= 1;
    }
  }
};

// Calls f(tile, part) for all that this block multiplies, in order.
template <class F> __device__ __forceinline__ void each_part(const fused_product &p, F f)
{
  for (uint32_t tile = blockIdx.x; tile < p.n_tiles; tile += gridDim.x)
    for (uint32_t part = 0; part < p.n_parts; part++)
      f(tile, part);
}

template <int NB> __device__ __forceinline__ void fetch_weights(const fused_product &p, fused_ring r)
{
  uint64_t policy = read_once_policy();
  each_part(p, [&](uint32_t tile, uint32_t part) {
    barrier_wait(r.emptied + r.s * 8, r.turn ^ 1);
    barrier_expect(r.filled + r.s * 8, p.slices * (p.tile_rows + NB) * SLICE_ROW_BYTES);
    fetch_pairs_once(r.slot(), &p.w_map, r.filled + r.s * 8, tile * p.out_rows, part * p.slices, policy);
    r.advance();
  });
}

__device__ __forceinline__ void fetch_x(const fused_product &p, fused_ring r)
{
  fence_global_writes(); // x was written by ordinary stores
  each_part(p, [&](uint32_t, uint32_t part) {
    barrier_wait(r.emptied + r.s * 8, r.turn ^ 1);
    fetch(r.x(), &p.x_map, r.filled + r.s * 8, 0, part * p.slices);
    r.advance();
  });
}

__device__ __forceinline__ void multipliers_sync() { asm volatile("bar.sync 1, %0;" ::"n"((int)MULTIPLIERS * 32) : "memory"); }

// ---- the product ----

// A warp's tokens are warp, warp + 8: what it needs to scale their products by 1 / rms.
template <int NB> struct token_scales {
  enum { LOADS = FUSED_TILES_MAX / 32 };
  float sums[NB / MULTIPLIERS][LOADS];
  __device__ __forceinline__ void load(const fused_product &p)
  {
#pragma unroll
    for (int q = 0; q < NB / MULTIPLIERS; q++)
#pragma unroll
      for (int j = 0; j < LOADS; j++) {
        uint32_t i = j * 32 + threadIdx.x % 32, token = threadIdx.x / 32 + q * MULTIPLIERS;
        sums[q][j] = i < p.n_sums && token < p.n ? __ldcg(p.sums + token * FUSED_TILES_MAX + i) : 0.0f;
      }
  }
  __device__ __forceinline__ float scale(int q, const fused_product &p) const
  {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < LOADS; j++)
      sum += sums[q][j];
    return p.n_sums == 0 ? 1.0f : rsqrtf(warp_sum(sum) / (float)p.width + p.eps);
  }
};

// x and the norm's weights of a tile, asked for before the product is there.
template <int NB> struct tile_inputs {
  enum { LOADS = TILE_ROWS_MAX / 32 };
  bf16 x[NB / MULTIPLIERS][LOADS];
  float norm[LOADS];
  __device__ __forceinline__ void load(const fused_product &p, uint32_t tile)
  {
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
      uint32_t r = j * 32 + threadIdx.x % 32, column = tile * p.out_rows + r;
      bool real = r < p.out_rows && column < p.n_out;
      norm[j] = real ? p.norm[column] : 0.0f;
#pragma unroll
      for (int q = 0; q < NB / MULTIPLIERS; q++) {
        uint32_t token = threadIdx.x / 32 + q * MULTIPLIERS;
        x[q][j] = real && token < p.n ? p.x[(size_t)token * p.width + column] : bf16();
      }
    }
  }
};

// Rows of 128 bytes that TMA swizzled: four 8 x 8 matrices of rows row0.., of columns 16 k.. .
__device__ __forceinline__ uint32_t chunk_at(uint32_t slice, uint32_t row, uint32_t chunk)
{
  return slice + row * SLICE_ROW_BYTES + ((chunk ^ (row & 7)) * 16);
}

// d[block of 16 weight rows][8 tokens]: what this warp's columns add up to. A slot's steps of 16 columns go round the warps; where they do
// not come out even, the warps that have one more change.
template <int NB, int BLOCKS>
__device__ __forceinline__ void multiply_parts(float (&d)[BLOCKS][NB / 8][4], fused_ring &r, const fused_product &p)
{
  enum { STEPS = SLICE_K / 16, MOST = (SLICES_MAX * STEPS + MULTIPLIERS - 1) / MULTIPLIERS };
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_steps = p.slices * STEPS, slice_bytes = BLOCKS * 16 * SLICE_ROW_BYTES;
  for (uint32_t part = 0; part < p.n_parts; part++) {
    uint32_t first = (warp + part % 2 * STEPS) % MULTIPLIERS;
    barrier_wait(r.filled + r.s * 8, r.turn);
#pragma unroll
    for (uint32_t i = 0; i < MOST; i++) {
      uint32_t step = first + i * MULTIPLIERS, k = step % STEPS;
      if (step >= n_steps)
        break;
      uint32_t w = r.slot() + step / STEPS * slice_bytes, x = r.x() + step / STEPS * NB * SLICE_ROW_BYTES;
      uint32_t b[NB / 8][2];
      if constexpr (NB == 8)
        ldmatrix_x2(b[0], chunk_at(x, lane % 8, 2 * k + lane / 8 % 2));
      else {
        uint32_t both[4];
        ldmatrix_x4(both, chunk_at(x, lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
        b[0][0] = both[0], b[0][1] = both[1], b[1][0] = both[2], b[1][1] = both[3];
      }
#pragma unroll
      for (int m = 0; m < BLOCKS; m++) {
        uint32_t a[4];
        ldmatrix_x4(a, chunk_at(w, m * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int j = 0; j < NB / 8; j++)
          mma(d[m][j], a, b[j][0], b[j][1]);
      }
    }
    __syncwarp();
    if (lane == 0)
      barrier_arrive(r.emptied + r.s * 8);
    r.advance();
  }
}

// products[warp][weight row][token]
template <int NB> __device__ __forceinline__ uint32_t product_at(const fused_product &p, uint32_t warp, uint32_t row, uint32_t token)
{
  return (warp * p.tile_rows + row) * (NB + 1) + token;
}

template <int NB> __device__ __forceinline__ float get_product(const fused_product &p, const float *products, uint32_t row, uint32_t token)
{
  float sum = 0;
#pragma unroll
  for (uint32_t w = 0; w < MULTIPLIERS; w++)
    sum += products[product_at<NB>(p, w, row, token)];
  return sum;
}

template <int NB, int BLOCKS>
__device__ __forceinline__ void multiply_blocks(fused_ring &r, const fused_product &p, float *products)
{
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float d[BLOCKS][NB / 8][4] = {};
  multiply_parts<NB, BLOCKS>(d, r, p);
#pragma unroll
  for (int m = 0; m < BLOCKS; m++)
#pragma unroll
    for (int j = 0; j < NB / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        products[product_at<NB>(p, warp, m * 16 + lane / 4 + e / 2 * 8, j * 8 + lane % 4 * 2 + e % 2)] = d[m][j][e];
}

template <int NB> __device__ __forceinline__ void multiply_tile(fused_ring &r, const fused_product &p, float *products)
{
  switch (p.tile_rows / 16) {
  case 1: multiply_blocks<NB, 1>(r, p, products); break;
  case 2: multiply_blocks<NB, 2>(r, p, products); break;
  case 3: multiply_blocks<NB, 3>(r, p, products); break;
  default: multiply_blocks<NB, TILE_ROWS_MAX / 16>(r, p, products); break;
  }
}

template <int NB>
__device__ __forceinline__ void store_tile(const fused_product &p, uint32_t tile, const float *products,
                                           const token_scales<NB> &scales, const tile_inputs<NB> &inputs)
{
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int q = 0; q < NB / MULTIPLIERS; q++) {
    uint32_t token = warp + q * MULTIPLIERS;
    if (token >= p.n)
      break;
    float scale = scales.scale(q, p), squares = 0;
#pragma unroll
    for (int j = 0; j < TILE_ROWS_MAX / 32; j++) {
      uint32_t r = j * 32 + lane, column = tile * p.out_rows + r;
      if (r >= p.out_rows || column >= p.n_out)
        continue;
      float v = get_product<NB>(p, products, r, token) * scale;
      size_t at = (size_t)token * p.n_out + column;
      if (p.kind == FUSED_SWIGLU) {
        float u = get_product<NB>(p, products, p.out_rows + r, token) * scale;
        ((bf16 *)p.out)[at] = __float2bfloat16(__fdividef(v, 1.0f + __expf(-v)) * u);
        continue;
      }
      if (p.bias)
        v += __bfloat162float(p.bias[column]);
      if (p.kind == FUSED_STORE)
        ((bf16 *)p.out)[at] = __float2bfloat16(v);
      else if (p.kind == FUSED_STORE_F32)
        ((float *)p.out)[at] = v;
      else {
        bf16 x = __float2bfloat16(v + __bfloat162float(inputs.x[q][j]));
        float kept = __bfloat162float(x); // the norm sees what the residual stream keeps
        p.x[at] = x;
        p.h[at] = __float2bfloat16(kept * inputs.norm[j]);
        squares += kept * kept;
      }
    }
    if (p.kind == FUSED_ADD) {
      squares = warp_sum(squares);
      if (lane == 0)
        p.sums[token * FUSED_TILES_MAX + tile] = squares;
    }
  }
}
#endif

template <int NB> __global__ void __launch_bounds__(FUSED_THREADS, 1) fused_kernel(const __grid_constant__ fused_product p)
{
#ifdef TD_HAS_WGMMA
  typedef fused_shape<NB> shape;
  extern __shared__ unsigned char smem_raw[];
  unsigned char *smem = smem_raw + (1024 - shared_address(smem_raw) % 1024) % 1024;
  float *products = (float *)(smem + p.n_slots * shape::SLOT_BYTES);
  fused_ring r = {shared_address(smem), shape::SLOT_BYTES, p.n_slots};
  r.filled = shared_address(products) + shape::product_bytes(p.tile_rows);
  r.emptied = r.filled + p.n_slots * 8;
  let_next_start();
  if (threadIdx.x == MULTIPLIERS * 32) {
    read_map(&p.w_map);
    read_map(&p.x_map);
    for (uint32_t i = 0; i < p.n_slots; i++) {
      barrier_init(r.filled + i * 8, 1);
      barrier_init(r.emptied + i * 8, MULTIPLIERS);
    }
    barriers_made();
  }
  __syncthreads();
  if (threadIdx.x == MULTIPLIERS * 32)
    fetch_weights<NB>(p, r);
  wait_for_input();
  if (threadIdx.x == MULTIPLIERS * 32 + 32)
    fetch_x(p, r);
  if (threadIdx.x >= MULTIPLIERS * 32)
    return;
  token_scales<NB> scales;
  tile_inputs<NB> inputs;
  scales.load(p);
  for (uint32_t tile = blockIdx.x; tile < p.n_tiles; tile += gridDim.x) {
    if (p.kind == FUSED_ADD)
      inputs.load(p, tile);
    multiply_tile<NB>(r, p, products);
    multipliers_sync();
    store_tile<NB>(p, tile, products, scales, inputs);
    if (tile + gridDim.x < p.n_tiles)
      multipliers_sync();
  }
#endif
}

// One block a row: x and h of its token, the sum of squares.
__global__ void __launch_bounds__(BEGIN_THREADS) begin_kernel(const fused_begin g, const int32_t *token_ids)
{
  __shared__ float partial[BEGIN_THREADS / 32];
  let_next_start();
  wait_for_input();
  const bf16 *src = g.table + (size_t)token_ids[blockIdx.x] * g.width;
  size_t row = (size_t)blockIdx.x * g.width;
  float squares = 0;
  for (uint32_t i = threadIdx.x * 8; i < g.width; i += BEGIN_THREADS * 8) {
    bf16x8 x = *(const bf16x8 *)(src + i);
    float v[8];
    unpack(x, v);
    *(bf16x8 *)(g.x + row + i) = x;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      squares += v[k] * v[k];
      v[k] *= g.norm[i + k];
    }
    *(bf16x8 *)(g.h + row + i) = pack(v);
  }
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0)
    partial[threadIdx.x / 32] = squares;
  __syncthreads();
  if (threadIdx.x > 0)
    return;
  float sum = 0;
  for (uint32_t i = 0; i < BEGIN_THREADS / 32; i++)
    sum += partial[i];
  g.sums[blockIdx.x * FUSED_TILES_MAX] = sum;
}

// ---- the host's side ----

typedef fused_shape<FUSED_ROWS_MAX> used_shape;

td_status td_fused_open(cuda_backend *b, td_error *err)
{
  cudaError_t e = cudaSuccess;
  if (b->has_wgmma)
    e = cudaFuncSetAttribute(fused_kernel<FUSED_ROWS_MAX>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES_MAX);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "kernels for few rows");
  return b->stream_encode ? td_cuda_alloc_array(b, (size_t)FUSED_ROWS_MAX * FUSED_TILES_MAX, &b->fused_sums, err) : TD_OK;
}

bool td_fused_lay_out(cuda_backend *b, fused_product *p, const td_weight *w, const void *x)
{
  const uint32_t halves = p->kind == FUSED_SWIGLU ? 2 : 1, n_slices = w->n_in / SLICE_K;
  if (w->n_in % SLICE_K != 0 || w->n_out % halves != 0 || (w->bias && halves == 2))
    return false;
  p->tile_rows = td_stream_tile_rows(w->n_out, (uint32_t)b->n_sms, 16);
  p->out_rows = p->tile_rows / halves;
  p->n_out = w->n_out / halves;
  p->n_tiles = (p->n_out + p->out_rows - 1) / p->out_rows;
  uint32_t most = std::min({(uint32_t)SLICES_MAX, SLOT_WEIGHT_BYTES / (p->tile_rows * SLICE_ROW_BYTES), n_slices});
  p->n_parts = (n_slices + most - 1) / most;
  p->slices = (n_slices + p->n_parts - 1) / p->n_parts;
  p->n_slots = used_shape::slots(p->tile_rows);
  p->bias = w->bias;
  const cuuint64_t row_bytes = (cuuint64_t)w->n_in * sizeof(bf16);
  const cuuint64_t w_dims[4] = {SLICE_K, p->n_out, halves, n_slices}, w_strides[3] = {row_bytes, row_bytes * p->n_out, SLICE_ROW_BYTES};
  const cuuint32_t w_box[4] = {SLICE_K, p->out_rows, halves, p->slices};
  const cuuint64_t x_dims[3] = {SLICE_K, p->n, n_slices}, x_strides[2] = {row_bytes, SLICE_ROW_BYTES};
  const cuuint32_t x_box[3] = {SLICE_K, FUSED_ROWS_MAX, p->slices};
  return td_stream_encode(b, &p->w_map, 4, w->data, w_dims, w_strides, w_box) &&
         td_stream_encode(b, &p->x_map, 3, x, x_dims, x_strides, x_box);
}

void td_fused_queue_product(cuda_backend *b, const fused_product &p)
{
  queue_kernel(b, fused_kernel<FUSED_ROWS_MAX>, dim3(std::min(p.n_tiles, (uint32_t)b->n_sms)), FUSED_THREADS,
               used_shape::smem_bytes(p.n_slots, p.tile_rows), p);
}

void td_fused_queue_begin(cuda_backend *b, const fused_begin &g)
{
  queue_kernel(b, begin_kernel, dim3(g.n), BEGIN_THREADS, 0, g, (const int32_t *)b->batch.token_ids);
}
