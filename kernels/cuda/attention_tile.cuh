// The arithmetic of the attention kernels that multiply by mma.sync: 16 packed rows of a warp against keys in shared memory, and what
// comes after: the sums of a block's warps, the shares of a split row.
#pragma once

#include "kernels/cuda/attention.cuh"

enum { WARPS = 4 };

__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], uint32_t addr)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr));
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t r[2], uint32_t addr)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(addr));
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

// Shared memory address of 16-byte chunk `chunk` of line `line`: lines one after another, chunks XORed by the line so that ldmatrix
// meets no bank twice.
template <int HD> struct padded_lines {
  static constexpr int CHUNKS = HD / 8;                                          // 16-byte chunks of a line
  static constexpr int STRIDE_CHUNKS = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32; // power of two: the XOR stays inside
  __device__ static __forceinline__ uint32_t at(uint32_t base, uint32_t line, uint32_t chunk)
  {
    return base + line * STRIDE_CHUNKS * 16 + ((chunk ^ (line & 7)) * 16);
  }
};

// As pages have them.
template <int HD> struct page_lines {
  __device__ static __forceinline__ uint32_t at(uint32_t base, uint32_t line, uint32_t chunk)
  {
    return base + kv_chunk_at(HD, line, chunk) * 2;
  }
};

// What a warp knows of its 16 packed rows.
template <int HD> struct warp_state {
  float o[HD / 8][4], m[2], l[2];
};

template <int HD> __device__ __forceinline__ void clear(warp_state<HD> &st)
{
#pragma unroll
  for (int d = 0; d < HD / 8; d++)
    st.o[d][0] = st.o[d][1] = st.o[d][2] = st.o[d][3] = 0;
  st.m[0] = st.m[1] = -INFINITY;
  st.l[0] = st.l[1] = 0;
}

// 16 packed rows against the COLS tokens from column col0 of the tile in shared memory on; the tile begins at token kv0.
template <int HD, int COLS, template <int> class LINES>
__device__ __forceinline__ void process_tile(warp_state<HD> &st, const uint32_t q[HD / 16][4], uint32_t smem_k, uint32_t smem_v,
                                             uint32_t col0, uint32_t kv0, int32_t pos_lo, int32_t pos_hi,
                                             const attention_args &a)
{
  uint32_t lane = threadIdx.x % 32, t = lane % 4;
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
      ldmatrix_x4(r, LINES<HD>::at(smem_k, line, c * 2 + (lane / 8) % 2));
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
      ldmatrix_x4_trans(r, LINES<HD>::at(smem_v, line, d * 2 + lane / 16));
      mma(st.o[2 * d], p, r[0], r[1]);
      mma(st.o[2 * d + 1], p, r[2], r[3]);
    }
  }
}

// l was summed over the lane's own columns only.
template <int HD> __device__ __forceinline__ void finish_sums(warp_state<HD> &st)
{
#pragma unroll
  for (int h = 0; h < 2; h++) {
    st.l[h] += __shfl_xor_sync(0xffffffffu, st.l[h], 1);
    st.l[h] += __shfl_xor_sync(0xffffffffu, st.l[h], 2);
  }
}

__device__ __forceinline__ bf16 *output_of(const attention_args &a, const td_attention_item &it, const td_plan_row &row,
                                           uint32_t kv_head, uint32_t p, uint32_t head_dim)
{
  uint32_t token = row.q_start + it.token_begin + p / a.group, head = kv_head * a.group + p % a.group;
  return a.out + ((size_t)token * a.n_heads + head) * head_dim;
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

// What comes before the keys of a row's items, of which finish_decode adds up the rest: nothing.
struct nothing_before {
  template <int PER_LANE> __device__ __forceinline__ void add(uint32_t, float &, float &, float (&)[PER_LANE]) const {}
};

// The shares of a split row, in their order whoever does it. A warp takes a packed row, a lane HD / 32 of its elements.
template <int HD, class BEFORE>
__device__ __forceinline__ void merge_partials(const attention_args &a, const td_attention_item &it, const td_plan_row &row,
                                               uint32_t kv_head, const BEFORE &before)
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
    before.add(p, m, l, o);
    bf16 *dst = output_of(a, it, row, kv_head, p, HD);
    for (int k = 0; k < PER_LANE; k++)
      dst[k * 32 + lane] = __float2bfloat16(divided(o[k], l));
  }
}

// A decode block's end: what its warps have is summed in their order, whoever does it, and goes to the output or, of a split row,
// to the partials; the last block of a split row sums those. `before`: what else the row has, and how it is added.
// smem: WARPS x 16 x (HD + 2) floats that no one needs any more.
template <int HD, class BEFORE = nothing_before>
__device__ __forceinline__ void finish_decode(const warp_state<HD> &st, const attention_args &a, const td_attention_item &it,
                                              const td_plan_row &row, uint32_t kv_head, float *smem, const BEFORE &before = {})
{
  constexpr int PER_LANE = HD / 32;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_rows = it.n_tokens * a.group;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t p = lane / 4 + 8 * h;
    float *r = smem + (warp * 16 + p) * (HD + 2);
    if (p >= n_rows)
      continue;
    for (int d = 0; d < HD / 8; d++)
      *(float2 *)(r + d * 8 + 2 * (lane % 4)) = make_float2(st.o[d][2 * h], st.o[d][2 * h + 1]);
    if (lane % 4 == 0) {
      r[HD] = st.m[h];
      r[HD + 1] = st.l[h];
    }
  }
  __syncthreads();
  for (uint32_t p = warp; p < n_rows; p += WARPS) {
    const float *r = smem + p * (HD + 2);
    constexpr int STRIDE = 16 * (HD + 2);
    float m = -INFINITY, l = 0, o[PER_LANE] = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++)
      m = fmaxf(m, r[w * STRIDE + HD]);
    float safe = m == -INFINITY ? 0 : m;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float f = exp2f(r[w * STRIDE + HD] - safe);
      l += r[w * STRIDE + HD + 1] * f;
#pragma unroll
      for (int k = 0; k < PER_LANE; k++)
        o[k] += r[w * STRIDE + k * 32 + lane] * f;
    }
    if (it.n_partials > 1) {
      float *dst = a.partials + ((size_t)(it.partial * a.n_kv_heads + kv_head) * TD_DECODE_ROWS + p) * (HD + 4);
      for (int k = 0; k < PER_LANE; k++)
        dst[k * 32 + lane] = o[k];
      if (lane == 0) {
        dst[HD] = m;
        dst[HD + 1] = l;
      }
    } else {
      before.add(p, m, l, o);
      bf16 *dst = output_of(a, it, row, kv_head, p, HD);
      for (int k = 0; k < PER_LANE; k++)
        dst[k * 32 + lane] = __float2bfloat16(divided(o[k], l));
    }
  }
  if (it.n_partials > 1 && arrives_last(a, it, kv_head))
    merge_partials<HD>(a, it, row, kv_head, before);
}
