// Products of up to 8 rows on sm_90a with what comes before and after them (fused.cuh), or of up to 4 alone: bound by reading the weights
// once.
//
// A block owns whole rows of the weight and keeps a ring of shared memory full of them by TMA. Weights depend on nothing, so
// the ring is filled before the kernels before are waited for, by the thread that makes its barriers and before the block meets; it is so
// large that a block has a multiprocessor for itself, and the next product's begin to load as soon as this one's end.
// Eight warps multiply by mma.sync: weight rows are its M side, rows of x its N side. Each has a half of one of a slot's four
// slices, and loads the rows of x that go with it into registers, by itself: a copy by TMA would queue behind a whole ring of weights. A
// product does not care in which order k is summed, so that a lane's 16 bytes are 8 neighbouring k of both operands.
#include "kernels/cuda/attention_tile.cuh" // mma
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh" // TD_HAS_WGMMA

#include <algorithm>

enum {
  MULTIPLIERS = 8, // warps
  FUSED_THREADS = MULTIPLIERS * 32 + 32,
  TILE_ROWS_MAX = 32,
  SLICE_K = 64,       // 128 bytes: the swizzle's width
  SLICE_ROW_BYTES = SLICE_K * 2,
  SLICES = MULTIPLIERS / 2, // of a slot
  PARTS_KEPT = 16,          // of x, in registers; more go through
  PARTS_AHEAD = 8,          // of them
  RING_BYTES = 200 << 10,
  SUM_STRIDE = FUSED_ROWS_MAX + 1,
  BEGIN_THREADS = 256,
};
static_assert(MULTIPLIERS == (int)FUSED_ROWS_MAX, "a warp stores one token's");

// Shared memory of a block: the ring, the warps' sums, two barriers a slot.
static __host__ __device__ constexpr uint32_t slot_bytes(uint32_t tile_rows) { return SLICES * tile_rows * SLICE_ROW_BYTES; }
static __host__ __device__ constexpr uint32_t sum_bytes(uint32_t tile_rows) { return MULTIPLIERS * tile_rows * SUM_STRIDE * 4; }
static constexpr uint32_t smem_bytes(uint32_t tile_rows) // and room to align
{
  return 1024 + RING_BYTES / slot_bytes(tile_rows) * (slot_bytes(tile_rows) + 16) + sum_bytes(tile_rows);
}

#ifdef TD_HAS_WGMMA
// ---- the ring ----

template <uint32_t ROWS> struct fused_ring {
  uint32_t base, n_slots, filled, emptied; // the last two: barriers
  uint32_t s, turn;                        // where its user is
  __device__ __forceinline__ uint32_t slot() const { return base + s * slot_bytes(ROWS); }
  __device__ __forceinline__ void advance()
  {
    if (++s == n_slots) {
      s = 0;
      turn ^= 1;
    }
  }
};

template <uint32_t ROWS> __device__ __forceinline__ void make_slots(const fused_ring<ROWS> &r, uint32_t from, uint32_t to)
{
#pragma unroll 4
  for (uint32_t s = from; s < to; s++) {
    barrier_init(r.filled + s * 8, 1);
    barrier_init(r.emptied + s * 8, MULTIPLIERS);
  }
  fence_barrier_init();
}

// What a block multiplies, part after part.
struct fused_fetches {
  uint32_t i, n, tile, part;

  template <uint32_t ROWS> __device__ __forceinline__ void next(const fused_product &p, fused_ring<ROWS> &r, uint64_t policy)
  {
    barrier_expect(r.filled + r.s * 8, slot_bytes(ROWS));
    fetch_pairs_once(r.slot(), &p.w_map, r.filled + r.s * 8, tile * p.out_rows, part * SLICES, policy);
    if (++part == p.n_parts) {
      part = 0;
      tile += gridDim.x;
    }
    r.advance();
    i++;
  }

  // The first of the slots before `end`, which nobody has to give back. Not unrolled: little code is there sooner where a block begins.
  template <uint32_t ROWS> __device__ __forceinline__ void fill(uint32_t end, const fused_product &p, fused_ring<ROWS> &r)
  {
    uint64_t policy = read_once_policy();
#pragma unroll 1
    while (i < min(n, end))
      next(p, r, policy);
  }

  // All others.
  template <uint32_t ROWS> __device__ __forceinline__ void run(const fused_product &p, fused_ring<ROWS> &r)
  {
    uint64_t policy = read_once_policy();
    while (i < n) {
      barrier_wait(r.emptied + r.s * 8, r.turn ^ 1);
      next(p, r, policy);
    }
  }
};

__device__ __forceinline__ void multipliers_sync() { asm volatile("bar.sync 1, %0;" ::"n"((int)MULTIPLIERS * 32) : "memory"); }

// ---- the product ----

// Loads where `there`, else zero; as volatile so that what is needed first is asked for first.
__device__ __forceinline__ uint4 load_chunk(const bf16 *p, bool there)
{
  uint4 v;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
               "@p ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];}"
               : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
               : "l"(p), "r"((uint32_t)there));
  return v;
}

__device__ __forceinline__ float load_float(const float *p, bool there)
{
  float v;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0;\n"
               "@p ld.global.cg.f32 %0, [%1];}"
               : "=&f"(v)
               : "l"(p), "r"((uint32_t)there));
  return v;
}

// What a lane has of its token's row of x: 8 columns of each part. With KEPT all parts stay where they are, else each makes way for the
// one PARTS_AHEAD later, or the next tile's.
template <bool KEPT> struct input_parts {
  static constexpr uint32_t PARTS = KEPT ? PARTS_KEPT : PARTS_AHEAD;
  const bf16 *row; // this lane's columns of part 0
  uint32_t columns_left, n_parts; // of this token from there on; 0: there is no such token
  uint4 x[PARTS];

  __device__ __forceinline__ void begin(const fused_product &p)
  {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = warp / 2 * SLICE_K + (lane % 4 + warp % 2 * 4) * 8;
    row = p.in + (size_t)(lane / 4) * p.n_in + column;
    columns_left = lane / 4 < p.n && p.n_in > column ? p.n_in - column : 0;
    n_parts = p.n_parts;
#pragma unroll
    for (uint32_t j = 0; j < PARTS; j++)
      load(j, j);
  }
  __device__ __forceinline__ void load(uint32_t j, uint32_t part)
  {
    uint32_t column = part * (SLICES * SLICE_K); // past the end weights are zero, but what is there might be NaN
    x[j] = load_chunk(row + column, column < columns_left);
  }
  __device__ __forceinline__ void used(uint32_t j, uint32_t part)
  {
    if constexpr (!KEPT)
      load(j, part + PARTS < n_parts ? part + PARTS : j);
  }
};

__device__ __forceinline__ uint4 shared_chunk(uint32_t address)
{
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

// The row of a block of 16 that a lane has as its first of mma's two; the other is 8 further. So the eight lanes that read at once
// read all banks once: their two rows' halves of a slice are swizzled to different places.
__device__ __forceinline__ uint32_t row_of_lane()
{
  uint32_t g = threadIdx.x % 32 / 4;
  return g / 2 + g % 2 * 4;
}

// d[block of 16 weight rows]: what this warp's columns add up to.
template <uint32_t ROWS, bool KEPT>
__device__ __forceinline__ void multiply_tile(float (&d)[(ROWS + 15) / 16][4], fused_ring<ROWS> &r, const fused_product &p,
                                              input_parts<KEPT> &in)
{
  constexpr uint32_t PARTS = input_parts<KEPT>::PARTS;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = row_of_lane();
  uint32_t at = (warp / 2 * ROWS + row) * SLICE_ROW_BYTES + ((lane % 4 + warp % 2 * 4) ^ row) * 16;
  for (uint32_t part0 = 0; part0 < p.n_parts; part0 += PARTS) {
#pragma unroll
    for (uint32_t j = 0; j < PARTS; j++) {
      if (part0 + j >= p.n_parts)
        break;
      barrier_wait(r.filled + r.s * 8, r.turn);
#pragma unroll
      for (uint32_t m = 0; m < (ROWS + 15) / 16; m++) {
        uint32_t chunk = r.slot() + at + m * 16 * SLICE_ROW_BYTES;
        uint4 low = shared_chunk(chunk), high = {};
        if (m * 16 + 8 < ROWS)
          high = shared_chunk(chunk + 8 * SLICE_ROW_BYTES);
        const uint32_t a[4] = {low.x, high.x, low.y, high.y}, b[4] = {low.z, high.z, low.w, high.w};
        mma(d[m], a, in.x[j].x, in.x[j].y);
        mma(d[m], b, in.x[j].z, in.x[j].w);
      }
      __syncwarp();
      if (lane == 0)
        barrier_arrive(r.emptied + r.s * 8);
      r.advance();
      in.used(j, part0 + j);
    }
  }
}

// sums[warp][weight row][token]
template <uint32_t ROWS> __device__ __forceinline__ uint32_t sum_at(uint32_t warp, uint32_t row, uint32_t token)
{
  return (warp * ROWS + row) * SUM_STRIDE + token;
}

template <uint32_t ROWS> __device__ __forceinline__ void put_sums(const float (&d)[(ROWS + 15) / 16][4], float *sums)
{
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t m = 0; m < (ROWS + 15) / 16; m++)
#pragma unroll
    for (uint32_t e = 0; e < 4; e++)
      if (m * 16 + e / 2 * 8 < ROWS)
        sums[sum_at<ROWS>(warp, m * 16 + row_of_lane() + e / 2 * 8, lane % 4 * 2 + e % 2)] = d[m][e];
}

template <uint32_t ROWS> __device__ __forceinline__ float get_sum(const float *sums, uint32_t row, uint32_t token)
{
  float sum = 0;
#pragma unroll
  for (uint32_t w = 0; w < MULTIPLIERS; w++)
    sum += sums[sum_at<ROWS>(w, row, token)];
  return sum;
}

// ---- what comes of it: a warp has one token, a lane one row of the tile ----

// What a token's products are scaled by: 1 / rms.
struct token_scale {
  enum { LOADS = FUSED_TILES_MAX / 32 };
  float squares[LOADS] = {};
  __device__ __forceinline__ void load(const fused_product &p)
  {
    if (p.n_sums == 0) // the branch also keeps these loads behind those of x
      return;
#pragma unroll
    for (uint32_t j = 0; j < LOADS; j++) {
      uint32_t i = j * 32 + threadIdx.x % 32, token = threadIdx.x / 32;
      squares[j] = load_float(p.sums + token * FUSED_TILES_MAX + i, i < p.n_sums && token < p.n);
    }
  }
  __device__ __forceinline__ float get(const fused_product &p) const
  {
    float sum = 0;
    if (p.n_sums == 0)
      return 1;
#pragma unroll
    for (uint32_t j = 0; j < LOADS; j++) {
      float square = squares[j];
      asm volatile("" : "+f"(square)); // added up here and not before the product, which would wait for them
      sum += square;
    }
    return rsqrtf(warp_sum(sum) / (float)p.width + p.eps);
  }
};

// What is asked for before the product is there, and looked at after it: a conversion would wait for it at once.
struct row_inputs {
  bf16 held, bias;
  float norm;
  __device__ __forceinline__ void load(const fused_product &p, uint32_t tile)
  {
    uint32_t token = threadIdx.x / 32, row = threadIdx.x % 32, column = tile * p.out_rows + row;
    bool real = row < p.out_rows && column < p.n_out && token < p.n;
    held = real && p.held ? p.held[(size_t)token * p.n_out + column] : bf16();
    norm = real && p.kind == FUSED_ADD ? p.norm[column] : 0.0f;
    bias = real && p.bias ? p.bias[column] : bf16();
  }
};

template <uint32_t ROWS>
__device__ __forceinline__ void store_tile(const fused_product &p, uint32_t tile, const float *sums, const token_scale &scale,
                                           const row_inputs &in)
{
  uint32_t token = threadIdx.x / 32, row = threadIdx.x % 32, column = tile * p.out_rows + row;
  if (token >= p.n)
    return;
  float by = scale.get(p), squares = 0;
  if (row < p.out_rows && column < p.n_out) {
    float v = get_sum<ROWS>(sums, row, token) * by;
    size_t at = (size_t)token * p.n_out + column;
    if (p.kind == FUSED_SWIGLU) {
      float u = get_sum<ROWS>(sums, p.out_rows + row, token) * by;
      ((bf16 *)p.out)[at] = __float2bfloat16(__fdividef(v, 1.0f + __expf(-v)) * u);
    } else if (p.kind == FUSED_STORE_F32) {
      ((float *)p.out)[at] = v + __bfloat162float(in.bias);
    } else {
      bf16 x = __float2bfloat16(v + __bfloat162float(in.bias) + __bfloat162float(in.held));
      float kept = __bfloat162float(x); // the norm sees what the residual stream keeps
      ((bf16 *)p.out)[at] = x;
      if (p.kind == FUSED_ADD)
        p.h[at] = __float2bfloat16(kept * in.norm);
      squares = kept * kept;
    }
  }
  if (p.kind == FUSED_ADD) {
    squares = warp_sum(squares);
    if (row == 0)
      p.sums[token * FUSED_TILES_MAX + tile] = squares;
  }
}
#endif

template <uint32_t ROWS, bool KEPT> __global__ void __launch_bounds__(FUSED_THREADS, 1) fused_kernel(const __grid_constant__ fused_product p)
{
#ifdef TD_HAS_WGMMA
  extern __shared__ unsigned char smem_raw[];
  unsigned char *smem = smem_raw + (1024 - shared_address(smem_raw) % 1024) % 1024;
  float *sums = (float *)(smem + p.n_slots * slot_bytes(ROWS));
  fused_ring<ROWS> r = {shared_address(smem), p.n_slots};
  r.filled = shared_address(sums) + sum_bytes(ROWS);
  r.emptied = r.filled + p.n_slots * 8;
  fused_fetches fetches = {0, (p.n_rounds - (blockIdx.x < p.n_last_round ? 0 : 1)) * p.n_parts, blockIdx.x, 0};
  let_next_start();
  if (threadIdx.x == 0)
    read_map(&p.w_map);
  if (threadIdx.x == MULTIPLIERS * 32) { // the first weights are asked for when only their barriers are made
    make_slots(r, 0, 1);
    fetches.fill(1, p, r);
    make_slots(r, 1, p.n_slots);
    fetches.fill(p.n_slots, p, r);
  }
  __syncthreads();
  if (threadIdx.x >= MULTIPLIERS * 32) {
    if (threadIdx.x == MULTIPLIERS * 32)
      fetches.run(p, r);
    wait_for_input();
    return;
  }
  wait_for_input();
  input_parts<KEPT> in;
  token_scale scale;
  row_inputs inputs;
  in.begin(p);
  scale.load(p);
  for (uint32_t tile = blockIdx.x; tile < p.n_tiles; tile += gridDim.x) {
    float d[(ROWS + 15) / 16][4] = {};
    inputs.load(p, tile);
    multiply_tile<ROWS, KEPT>(d, r, p, in);
    if (tile != blockIdx.x) // the last tile's sums have been read
      multipliers_sync();
    put_sums<ROWS>(d, sums);
    multipliers_sync();
    store_tile<ROWS>(p, tile, sums, scale, inputs);
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

typedef void (*fused_function)(fused_product);

template <bool KEPT> static fused_function kernel_of_rows(uint32_t tile_rows)
{
  return tile_rows == 8    ? fused_kernel<8, KEPT>
         : tile_rows == 16 ? fused_kernel<16, KEPT>
         : tile_rows == 24 ? fused_kernel<24, KEPT>
                           : fused_kernel<32, KEPT>;
}

static fused_function kernel_of(uint32_t tile_rows, bool kept)
{
  static_assert(TILE_ROWS_MAX == 32, "kernel_of_rows has these");
  return kept ? kernel_of_rows<true>(tile_rows) : kernel_of_rows<false>(tile_rows);
}

td_status td_fused_open(cuda_backend *b, td_error *err)
{
  cudaError_t e = cudaSuccess;
  for (uint32_t rows = 8; rows <= TILE_ROWS_MAX && b->has_wgmma; rows += 8)
    for (int kept = 0; kept < 2 && e == cudaSuccess; kept++)
      e = cudaFuncSetAttribute(kernel_of(rows, kept), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem_bytes(rows));
  if (e != cudaSuccess)
    return td_cuda_fail(err, e, "kernels for few rows");
  return b->stream_encode ? td_cuda_alloc_array(b, (size_t)FUSED_ROWS_MAX * FUSED_TILES_MAX, &b->fused_sums, err) : TD_OK;
}

bool td_fused_lay_out(cuda_backend *b, fused_product *p, const td_weight *w, const void *x)
{
  const uint32_t halves = p->kind == FUSED_SWIGLU ? 2 : 1, n_slices = w->n_in / SLICE_K;
  if (w->n_in % SLICE_K != 0 || w->n_out % halves != 0 || (w->bias && halves == 2) || (uintptr_t)x % 16 != 0)
    return false;
  // Alone, 6144 x 4096 is faster by tiles of 24; but in a step products should share their code, or each waits for its own to come.
  p->tile_rows = w->n_out >= TILE_ROWS_MAX * (uint32_t)b->n_sms ? TILE_ROWS_MAX
                                                                : td_stream_tile_rows(w->n_out, (uint32_t)b->n_sms, 8 * halves, TILE_ROWS_MAX);
  p->out_rows = p->tile_rows / halves;
  p->n_out = w->n_out / halves;
  p->n_tiles = (p->n_out + p->out_rows - 1) / p->out_rows;
  p->n_parts = (n_slices + SLICES - 1) / SLICES;
  p->n_rounds = (p->n_tiles + (uint32_t)b->n_sms - 1) / (uint32_t)b->n_sms;
  p->n_last_round = p->n_tiles - (p->n_rounds - 1) * (uint32_t)b->n_sms;
  p->n_slots = std::min(RING_BYTES / slot_bytes(p->tile_rows), p->n_rounds * p->n_parts);
  p->in = (const bf16 *)x;
  p->n_in = w->n_in;
  p->bias = w->bias;
  const cuuint64_t row_bytes = (cuuint64_t)w->n_in * sizeof(bf16);
  const cuuint64_t dims[4] = {SLICE_K, p->n_out, halves, n_slices}, strides[3] = {row_bytes, row_bytes * p->n_out, SLICE_ROW_BYTES};
  const cuuint32_t box[4] = {SLICE_K, p->out_rows, halves, SLICES};
  return td_stream_encode(b, &p->w_map, 4, w->data, dims, strides, box);
}

void td_fused_queue_product(cuda_backend *b, const fused_product &p)
{
  queue_kernel(b, kernel_of(p.tile_rows, p.n_parts <= PARTS_KEPT), dim3(std::min(p.n_tiles, (uint32_t)b->n_sms)), FUSED_THREADS,
               smem_bytes(p.tile_rows), p); // all of it, even for fewer slots: no second block beside this one
}

bool td_fused_linear(cuda_backend *b, const td_linear_params *q)
{
  fused_product p = {};
  if (!b->stream_encode || q->n > FUSED_ALONE_MAX || (q->out_f32 && q->add))
    return false;
  p.kind = q->out_f32 ? FUSED_STORE_F32 : FUSED_STORE;
  p.n = q->n;
  p.out = at<void>(q->out);
  p.held = q->add ? at<bf16>(q->out) : nullptr;
  if (!td_fused_lay_out(b, &p, q->weight, at<void>(q->x)))
    return false;
  td_fused_queue_product(b, p);
  return true;
}

void td_fused_queue_begin(cuda_backend *b, const fused_begin &g)
{
  queue_kernel(b, begin_kernel, dim3(g.n), BEGIN_THREADS, 0, g, (const int32_t *)b->batch.token_ids);
}
