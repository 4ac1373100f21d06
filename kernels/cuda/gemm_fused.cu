// GEMMs of up to 16 tokens on sm_90a, fused with the ops before and after them (fused.cuh), or of up to 8
// tokens alone. Their time is that of reading the weights once.
//
// Weights do not depend on earlier kernels. So the thread that initialises a CTA's barriers fills the ring
// with weights, before the CTA's threads synchronise and before the wait for the kernels before. The ring
// takes all of an SM's shared memory, and the next GEMM's CTAs begin to load as soon as this one's CTAs end.
// A stage also holds the columns of x that belong to its weights, loaded after the wait. It has x of real
// tokens only, because room for x reduces room for weights.
//
// A CTA owns whole weight rows. Eight warps multiply by mma.sync: weight rows are the M side, tokens the N
// side. Each warp has one half of one of a stage's four k tiles. k may be summed in any order, so a lane's 16
// bytes are 8 neighbouring k of both operands. The GEMMs of a step share kernels: one for tiles of 24 and 32
// weight rows, one for 8 and 16. So few of them wait for their code to be loaded.
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh" // TD_HAS_WGMMA

#include <algorithm>

enum {
  CONSUMER_WARPS = 8,
  PRODUCER = CONSUMER_WARPS * 32, // number of the producer thread
  FUSED_THREADS = PRODUCER + 32,
  TILE_ROWS_MAX = 32,
  MMA_ROWS = 16,                // weight rows of an mma
  K_TILES = CONSUMER_WARPS / 2, // k tiles of a stage
  SWIZZLE_BYTES = 1024,         // period of the swizzle: stages, and x inside a stage, are aligned to it
  SMEM_BYTES = 227 << 10,       // all of an SM: no second CTA fits
  EMBED_THREADS = 256,
};
static_assert(CONSUMER_WARPS == 8, "a warp stores one of eight tokens");
static_assert(TILE_ROWS_MAX == 32, "a lane stores one row");

// Shared memory of a CTA: the ring's stages, the warps' sums, the ring's barriers. EIGHTS: groups of eight
// tokens. M_TILES: groups of MMA_ROWS weight rows.
static __host__ __device__ constexpr uint32_t k_tiles_bytes(uint32_t rows)
{
  return K_TILES * rows * K_TILE_ROW_BYTES;
}
static __host__ __device__ constexpr uint32_t stage_bytes(uint32_t tile_rows, uint32_t n)
{
  return (k_tiles_bytes(tile_rows) + k_tiles_bytes(n) + SWIZZLE_BYTES - 1) / SWIZZLE_BYTES * SWIZZLE_BYTES;
}
static __host__ __device__ constexpr uint32_t sum_stride(uint32_t EIGHTS) { return 8 * EIGHTS + 1; }
static __host__ __device__ constexpr uint32_t sum_bytes(uint32_t EIGHTS, uint32_t tile_rows)
{
  return CONSUMER_WARPS * tile_rows * sum_stride(EIGHTS) * 4;
}

#ifdef TD_HAS_WGMMA
// ---- the ring ----

// A stage: K_TILES k tiles of weights, then K_TILES k tiles of x.
typedef ring<0, 0, CONSUMER_WARPS> fused_ring;

__device__ __forceinline__ void init_stages(const fused_ring &r, uint32_t from, uint32_t to)
{
  r.init(from, to);
  fence_barrier_init();
}

// The producer: loads the CTA's weights and x, stage after stage.
struct fused_producer {
  fused_ring ring;
  uint32_t i, n, tile, k_block; // i: the next of n stages; k_block: which k block of `tile` it holds

  __device__ __forceinline__ void next(const fused_gemm &p, uint64_t policy)
  {
    ring.expect(k_tiles_bytes(p.tile_rows) + k_tiles_bytes(p.n));
    tma_load_halves_once(ring.data(), &p.w_map, ring.full(), tile * p.out_rows, k_block * K_TILES, policy);
    if (++k_block == p.n_k_blocks) {
      k_block = 0;
      tile += gridDim.x;
    }
    ring.advance();
    i++;
  }

  // Loads weights into the stages before `end`, which are empty. Not unrolled: short code is fetched faster
  // when a CTA begins.
  __device__ __forceinline__ void fill(uint32_t end, const fused_gemm &p)
  {
    uint64_t policy = read_once_policy();
#pragma unroll 1
    while (i < min(n, end))
      next(p, policy);
  }

  // After the wait: loads x of the stages that have weights, then all other stages.
  __device__ __forceinline__ void run(const fused_gemm &p)
  {
    uint64_t policy = read_once_policy();
    uint32_t x_k_block = 0;
    fence_global_writes(); // x was written with ordinary stores
#pragma unroll 1
    for (uint32_t s = 0; s < i; s++)
      load_x(p, s, &x_k_block);
#pragma unroll 1
    while (i < n) {
      uint32_t s = ring.now.index;
      ring.acquire();
      next(p, policy);
      load_x(p, s, &x_k_block);
    }
  }

  __device__ __forceinline__ void load_x(const fused_gemm &p, uint32_t s, uint32_t *x_k_block)
  {
    tma_load(ring.data(s) + k_tiles_bytes(p.tile_rows), &p.x_map, ring.full(s), 0, *x_k_block * K_TILES);
    if (++*x_k_block == p.n_k_blocks)
      *x_k_block = 0;
  }
};

__device__ __forceinline__ void consumers_sync()
{
  asm volatile("bar.sync 1, %0;" ::"n"((int)CONSUMER_WARPS * 32) : "memory");
}

// ---- the GEMM ----

__device__ __forceinline__ float load_float(const float *p, bool there)
{
  float v;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0;\n"
               "@p ld.global.cg.f32 %0, [%1];}"
               : "=&f"(v)
               : "l"(p), "r"((uint32_t)there));
  return v;
}

__device__ __forceinline__ uint4 shared_chunk(uint32_t address)
{
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Which of eight rows is row or column g of an mma. With this order the eight lanes that read together read
// every bank once: their two rows' halves of a k tile are swizzled to different banks.
__device__ __forceinline__ uint32_t row_of(uint32_t g) { return g / 2 + g % 2 * 4; }

// Offset of a 16-byte chunk in k tiles of n_rows rows.
__device__ __forceinline__ uint32_t chunk_at(uint32_t k_tile, uint32_t n_rows, uint32_t row, uint32_t chunk)
{
  uint32_t line = k_tile * n_rows + row;
  return line * K_TILE_ROW_BYTES + (chunk ^ line % 8) * 16;
}

// d: sums over this warp's columns. The last M tile may have eight weight rows more than the tile. They are
// read and dropped later; the read stays inside the stage, because x and padding behind the weights are at
// least as long.
static_assert(stage_bytes(8, 1) - k_tiles_bytes(8) >= 8 * K_TILE_ROW_BYTES, "as it says");
static_assert(stage_bytes(24, 1) - k_tiles_bytes(24) >= 8 * K_TILE_ROW_BYTES, "as it says");
template <uint32_t M_TILES, uint32_t EIGHTS>
__device__ __forceinline__ void multiply_tile(float (&d)[M_TILES][EIGHTS][4], fused_ring &ring,
                                              const fused_gemm &p)
{
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = row_of(lane / 4),
           chunk = lane % 4 + warp % 2 * 4;
  uint32_t w_at = chunk_at(warp / 2, p.tile_rows, row, chunk), x_at[EIGHTS];
#pragma unroll
  for (uint32_t j = 0; j < EIGHTS; j++)
    x_at[j] = k_tiles_bytes(p.tile_rows) + chunk_at(warp / 2, p.n, min(j * 8 + row, p.n - 1), chunk);
#pragma unroll 8
  for (uint32_t k_block = 0; k_block < p.n_k_blocks; k_block++) { // main loop
    uint4 x[EIGHTS], w[M_TILES][2];
    ring.wait_full();
#pragma unroll
    for (uint32_t j = 0; j < EIGHTS; j++)
      x[j] = shared_chunk(ring.data() + x_at[j]);
#pragma unroll
    for (uint32_t k = 0; k < M_TILES * 2; k++)
      w[k / 2][k % 2] = shared_chunk(ring.data() + w_at + k * 8 * K_TILE_ROW_BYTES);
#pragma unroll
    for (uint32_t half = 0; half < 2; half++)
#pragma unroll
      for (uint32_t m = 0; m < M_TILES; m++) {
        const uint4 low = w[m][0], high = w[m][1];
        const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (uint32_t j = 0; j < EIGHTS; j++)
          mma_16816(d[m][j], half ? second : first, half ? x[j].z : x[j].x, half ? x[j].w : x[j].y);
      }
    __syncwarp();
    if (lane == 0)
      ring.release(ring.now.index);
    ring.advance();
  }
}

// Index of a warp's sum for a weight row and a token.
template <uint32_t EIGHTS>
__device__ __forceinline__ uint32_t sum_at(uint32_t tile_rows, uint32_t warp, uint32_t row, uint32_t token)
{
  return (warp * tile_rows + row) * sum_stride(EIGHTS) + token;
}

template <uint32_t M_TILES, uint32_t EIGHTS>
__device__ __forceinline__ void store_sums(const float (&d)[M_TILES][EIGHTS][4], float *sums,
                                           uint32_t tile_rows)
{
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t m = 0; m < M_TILES; m++)
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
      uint32_t row = m * MMA_ROWS + e / 2 * 8 + row_of(lane / 4), token = row_of(lane % 4 * 2 + e % 2);
      if (row < tile_rows)
#pragma unroll
        for (uint32_t j = 0; j < EIGHTS; j++)
          sums[sum_at<EIGHTS>(tile_rows, warp, row, j * 8 + token)] = d[m][j][e];
    }
}

template <uint32_t EIGHTS>
__device__ __forceinline__ float load_sum(const float *sums, uint32_t tile_rows, uint32_t row, uint32_t token)
{
  float sum = 0;
#pragma unroll
  for (uint32_t w = 0; w < CONSUMER_WARPS; w++)
    sum += sums[sum_at<EIGHTS>(tile_rows, w, row, token)];
  return sum;
}

// ---- the epilogue: a warp has one of eight tokens, a lane one row of the tile ----

// The factor of a token's sums: 1 / rms.
struct token_scale {
  enum { LOADS = FUSED_TILES_MAX / 32 };
  float squares[LOADS] = {};
  __device__ __forceinline__ void load(const fused_gemm &p, uint32_t token)
  {
    if (p.n_sums == 0)
      return;
#pragma unroll
    for (uint32_t j = 0; j < LOADS; j++) {
      uint32_t i = j * 32 + threadIdx.x % 32;
      squares[j] = load_float(p.sums + token * FUSED_TILES_MAX + i, i < p.n_sums && token < p.n);
    }
  }
  __device__ __forceinline__ float get(const fused_gemm &p) const
  {
    float sum = 0;
    if (p.n_sums == 0)
      return 1;
#pragma unroll
    for (uint32_t j = 0; j < LOADS; j++) {
      float square = squares[j];
      asm volatile(""
                   : "+f"(square)); // keeps the compiler from adding before the GEMM, which would then
                                    // wait for the loads
      sum += square;
    }
    return rsqrtf(warp_sum(sum) / (float)p.width + p.eps);
  }
};

// Values that are loaded before the sums are complete and used after. They stay bf16 until then, because a
// conversion would wait for the load.
template <uint32_t EIGHTS> struct row_inputs {
  bf16 residual[EIGHTS], bias;
  float norm;
  __device__ __forceinline__ void load(const fused_gemm &p, uint32_t tile)
  {
    uint32_t row = threadIdx.x % 32, column = tile * p.out_rows + row;
    bool real = row < p.out_rows && column < p.n_out;
#pragma unroll
    for (uint32_t j = 0; j < EIGHTS; j++) {
      uint32_t token = j * 8 + threadIdx.x / 32;
      residual[j] = real && p.residual && token < p.n ? p.residual[(size_t)token * p.n_out + column] : bf16();
    }
    norm = real && p.kind == FUSED_ADD_NORM ? p.norm[column] : 0.0f;
    bias = real && p.bias ? p.bias[column] : bf16();
  }
};

template <uint32_t EIGHTS>
__device__ __forceinline__ void store_tile(const fused_gemm &p, uint32_t tile, const float *sums,
                                           const token_scale (&scale)[EIGHTS], const row_inputs<EIGHTS> &in)
{
#pragma unroll
  for (uint32_t j = 0; j < EIGHTS; j++) {
    uint32_t token = j * 8 + threadIdx.x / 32, row = threadIdx.x % 32, column = tile * p.out_rows + row;
    if (token >= p.n)
      return;
    float factor = scale[j].get(p), squares = 0;
    if (row < p.out_rows && column < p.n_out) {
      float v = load_sum<EIGHTS>(sums, p.tile_rows, row, token) * factor;
      size_t at = (size_t)token * p.n_out + column;
      if (p.kind == FUSED_SWIGLU) {
        float u = load_sum<EIGHTS>(sums, p.tile_rows, p.out_rows + row, token) * factor;
        ((bf16 *)p.out)[at] = __float2bfloat16(__fdividef(v, 1.0f + __expf(-v)) * u);
      } else if (p.kind == FUSED_STORE_F32) {
        ((float *)p.out)[at] = v + __bfloat162float(in.bias);
      } else {
        bf16 x = __float2bfloat16(v + __bfloat162float(in.bias) + __bfloat162float(in.residual[j]));
        float kept = __bfloat162float(x); // the norm sees the value that the residual stream keeps
        ((bf16 *)p.out)[at] = x;
        if (p.kind == FUSED_ADD_NORM)
          p.h[at] = __float2bfloat16(kept * in.norm);
        squares = kept * kept;
      }
    }
    if (p.kind == FUSED_ADD_NORM) {
      squares = warp_sum(squares);
      if (row == 0)
        p.sums[token * FUSED_TILES_MAX + tile] = squares;
    }
  }
}
#endif

template <uint32_t M_TILES, uint32_t EIGHTS>
__global__ void __launch_bounds__(FUSED_THREADS, 1) fused_kernel(const __grid_constant__ fused_gemm p)
{
#ifdef TD_HAS_WGMMA
  extern __shared__ unsigned char smem_raw[];
  unsigned char *smem = smem_raw + (SWIZZLE_BYTES - shared_address(smem_raw) % SWIZZLE_BYTES) % SWIZZLE_BYTES;
  uint32_t bytes = stage_bytes(p.tile_rows, p.n);
  float *sums = (float *)(smem + p.n_stages * bytes);
  fused_ring ring;
  ring.place(shared_address(smem), shared_address(sums) + sum_bytes(EIGHTS, p.tile_rows), p.n_stages, bytes);

  // prologue
  uint32_t n_rounds = p.n_rounds - (blockIdx.x < p.n_last_round ? 0 : 1);
  fused_producer producer = {ring.as_producer(), 0, n_rounds * p.n_k_blocks, blockIdx.x, 0};
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(&p.w_map);
    prefetch_map(&p.x_map);
  }
  if (threadIdx.x == PRODUCER) { // the first weights are requested as soon as their barriers exist
    init_stages(ring, 0, 1);
    producer.fill(1, p);
    init_stages(ring, 1, p.n_stages);
    producer.fill(p.n_stages, p);
  }
  __syncthreads();
  pdl_wait();
  if (threadIdx.x >= PRODUCER) {
    if (threadIdx.x == PRODUCER)
      producer.run(p);
    return;
  }

  // consumers
  token_scale scale[EIGHTS];
  row_inputs<EIGHTS> inputs;
#pragma unroll
  for (uint32_t j = 0; j < EIGHTS; j++)
    scale[j].load(p, j * 8 + threadIdx.x / 32);
  for (uint32_t tile = blockIdx.x; tile < p.n_tiles; tile += gridDim.x) {
    float d[M_TILES][EIGHTS][4] = {};
    inputs.load(p, tile);
    multiply_tile(d, ring, p);
    if (tile != blockIdx.x) // wait until the last tile's sums have been read
      consumers_sync();
    store_sums(d, sums, p.tile_rows);
    consumers_sync();
    store_tile<EIGHTS>(p, tile, sums, scale, inputs);
  }
#endif
}

// One CTA for each token: writes its x, h and sum of squares.
__global__ void __launch_bounds__(EMBED_THREADS)
    fused_embed_kernel(const fused_embedding g, const int32_t *token_ids)
{
  __shared__ float partial[EMBED_THREADS / 32];
  pdl_launch_dependents();
  pdl_wait();
  const bf16 *src = g.table + (size_t)token_ids[blockIdx.x] * g.width;
  size_t row = (size_t)blockIdx.x * g.width;
  float squares = 0;
  for (uint32_t i = threadIdx.x * 8; i < g.width; i += EMBED_THREADS * 8) {
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
  for (uint32_t i = 0; i < EMBED_THREADS / 32; i++)
    sum += partial[i];
  g.sums[blockIdx.x * FUSED_TILES_MAX] = sum;
}

// ---- host side ----

typedef void (*fused_function)(fused_gemm);

static uint32_t eights_of(uint32_t n) { return (n + 7) / 8; }

static fused_function kernel_of(uint32_t tile_rows, uint32_t n)
{
  static_assert(TILE_ROWS_MAX == 2 * MMA_ROWS && FUSED_ROWS_MAX == 16 && FUSED_ALONE_MAX <= FUSED_ROWS_MAX,
                "these are all");
  return tile_rows <= MMA_ROWS ? (eights_of(n) == 1 ? fused_kernel<1, 1> : fused_kernel<1, 2>)
                               : (eights_of(n) == 1 ? fused_kernel<2, 1> : fused_kernel<2, 2>);
}

td_status td_fused_open(cuda_backend *b, td_error *err)
{
  cudaError_t e = cudaSuccess;
  for (uint32_t tile_rows = MMA_ROWS; tile_rows <= TILE_ROWS_MAX; tile_rows += MMA_ROWS)
    for (uint32_t n = 8; n <= FUSED_ROWS_MAX && b->device.has_wgmma && e == cudaSuccess; n += 8)
      e = cudaFuncSetAttribute(kernel_of(tile_rows, n), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               SMEM_BYTES);
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "kernels for few rows");
  return b->linears.encode_map ? td_cuda_alloc_array(&b->device, (size_t)FUSED_ROWS_MAX * FUSED_TILES_MAX,
                                                     &b->linears.fused_sums, err)
                               : TD_OK;
}

bool td_fused_plan_gemm(cuda_backend *b, fused_gemm *p, const td_cuda_weight *w, const void *x)
{
  const uint32_t halves = p->kind == FUSED_SWIGLU ? 2 : 1, n_k_tiles = w->n_in / K_TILE;
  if (!is_of_type(w, TD_BF16, TD_BF16) || w->n_in % K_TILE != 0 || w->n_out % halves != 0 ||
      (w->bias && halves == 2))
    return false;
  p->tile_rows = td_skinny_tile_rows(w->n_out, (uint32_t)b->device.n_sms, 8 * halves, TILE_ROWS_MAX);
  p->out_rows = p->tile_rows / halves;
  p->n_out = w->n_out / halves;
  p->n_tiles = (p->n_out + p->out_rows - 1) / p->out_rows;
  p->n_k_blocks = (n_k_tiles + K_TILES - 1) / K_TILES;
  p->n_rounds = (p->n_tiles + (uint32_t)b->device.n_sms - 1) / (uint32_t)b->device.n_sms;
  p->n_last_round = p->n_tiles - (p->n_rounds - 1) * (uint32_t)b->device.n_sms;
  p->n_stages = std::min((SMEM_BYTES - SWIZZLE_BYTES - sum_bytes(eights_of(p->n), p->tile_rows)) /
                             (stage_bytes(p->tile_rows, p->n) + 2 * 8),
                         p->n_rounds * p->n_k_blocks);
  p->bias = w->bias;
  const cuuint64_t row_bytes = (cuuint64_t)w->n_in * sizeof(bf16);
  const cuuint64_t dims[4] = {K_TILE, p->n_out, halves, n_k_tiles},
                   strides[3] = {row_bytes, row_bytes * p->n_out, K_TILE_ROW_BYTES};
  const cuuint32_t box[4] = {K_TILE, p->out_rows, halves, K_TILES};
  const cuuint64_t x_dims[3] = {K_TILE, p->n, n_k_tiles}, x_strides[2] = {row_bytes, K_TILE_ROW_BYTES};
  const cuuint32_t x_box[3] = {K_TILE, p->n, K_TILES};
  return td_skinny_encode_map(b, &p->w_map, w->types[0].storage, 4, w->data, dims, strides, box) &&
         td_skinny_encode_map(b, &p->x_map, TD_BF16, 3, x, x_dims, x_strides, x_box);
}

void td_fused_queue_gemm(cuda_backend *b, const fused_gemm &p)
{
  queue_kernel(&b->device, kernel_of(p.tile_rows, p.n), dim3(std::min(p.n_tiles, (uint32_t)b->device.n_sms)),
               FUSED_THREADS, SMEM_BYTES, p);
}

bool td_fused_linear(cuda_backend *b, const params_with_rows<td_linear_params> *q)
{
  fused_gemm p = {};
  if (!b->linears.encode_map || q->n > FUSED_ALONE_MAX || (q->out_f32 && q->add))
    return false;
  p.kind = q->out_f32 ? FUSED_STORE_F32 : FUSED_STORE;
  p.n = q->n;
  p.out = at<void>(q->out);
  p.residual = q->add ? at<bf16>(q->out) : nullptr;
  if (!td_fused_plan_gemm(b, &p, cuda_weight(q->weight), at<void>(q->x)))
    return false;
  td_fused_queue_gemm(b, p);
  return true;
}

void td_fused_queue_embedding(cuda_backend *b, const fused_embedding &g)
{
  queue_kernel(&b->device, fused_embed_kernel, dim3(g.n), EMBED_THREADS, 0, g,
               (const int32_t *)b->frame.batch.token_ids);
}
