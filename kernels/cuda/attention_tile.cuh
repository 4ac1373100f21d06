// Arithmetic of the attention kernels that use mma.sync: a warp's 16 query rows against keys in shared
// memory.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

enum { WARPS = 4 };

// Shared address of 16-byte chunk `chunk` of line `line`. Lines follow each other; chunks are XORed with the
// line so that ldmatrix has no bank conflicts.
template <int HD> struct padded_lines {
  static constexpr int CHUNKS = HD / 8; // 16-byte chunks of a line
  static constexpr int STRIDE_CHUNKS = CHUNKS <= 8    ? 8
                                       : CHUNKS <= 16 ? 16
                                                      : 32; // power of two: the XOR stays inside the line
  __device__ static __forceinline__ uint32_t at(uint32_t base, uint32_t line, uint32_t chunk)
  {
    return base + line * STRIDE_CHUNKS * 16 + ((chunk ^ (line & 7)) * 16);
  }
};

// The same for the layout of pages.
template <int HD> struct page_lines {
  __device__ static __forceinline__ uint32_t at(uint32_t base, uint32_t line, uint32_t chunk)
  {
    return base + kv_chunk_at(HD, line, chunk) * 2;
  }
};

// State of a warp's 16 query rows: unscaled outputs, softmax maxima and sums.
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

// Positions of a thread's query rows lane / 4 and lane / 4 + 8. All 16 rows see keys [from_all, until_all).
struct query_positions {
  int32_t lo, hi, from_all, until_all;
};

// Positions of query rows p0 .. p0 + 15 of an item.
__device__ __forceinline__ query_positions positions_of(const td_attention_item &it, const attention_args &a,
                                                        uint32_t p0)
{
  uint32_t lane = threadIdx.x % 32, last = it.n_tokens * a.gqa_group - 1;
  int32_t first_pos = (int32_t)it.position, latest = first_pos + (int32_t)(min(p0 + 15, last) / a.gqa_group);
  return {first_pos + (int32_t)(min(p0 + lane / 4, last) / a.gqa_group),
          first_pos + (int32_t)(min(p0 + lane / 4 + 8, last) / a.gqa_group),
          a.window > 0 ? latest - (int32_t)a.window + 1 : 0,
          first_pos + (int32_t)(min(p0, last) / a.gqa_group) + 1};
}

// Scores of 16 query rows and COLS keys of the tile in shared memory, from column col0 on.
template <int HD, int COLS, template <int> class LINES>
__device__ __forceinline__ void multiply_qk(float (&s)[COLS / 8][4], const uint32_t q[HD / 16][4],
                                            uint32_t smem_k, uint32_t col0)
{
  uint32_t lane = threadIdx.x % 32;
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
      mma_16816(s[2 * j], q[c], r[0], r[1]);
      mma_16816(s[2 * j + 1], q[c], r[2], r[3]);
    }
}

// Online softmax: turns the scores of keys from kv0 on into weights, updates the state's maxima and sums, and
// rescales its outputs.
template <int HD, int COLS>
__device__ __forceinline__ void online_softmax(warp_state<HD> &st, float (&s)[COLS / 8][4], uint32_t kv0,
                                               const query_positions &pos, const attention_args &a)
{
  if ((int32_t)kv0 < pos.from_all || (int32_t)(kv0 + COLS) > pos.until_all) {
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < COLS / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int32_t key = (int32_t)(kv0 + j * 8 + 2 * t + (e & 1)), at = e < 2 ? pos.lo : pos.hi;
        if (key > at || (a.window > 0 && key <= at - (int32_t)a.window))
          s[j][e] = -INFINITY;
      }
  }
  float corr[2], safe[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < COLS / 8; j++)
      top = fmaxf(top, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    top = fmaxf(st.m[h], top * a.scale_log2);
    safe[h] = top == -INFINITY ? 0 : top;
    corr[h] = exp2_fast(st.m[h] - safe[h]); // 0 as long as no key was seen
    st.m[h] = top;
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < COLS / 8; j++)
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; e++) {
        s[j][e] = exp2_fast(fmaf(s[j][e], a.scale_log2, -safe[h]));
        sum += s[j][e];
      }
    st.l[h] = st.l[h] * corr[h] + sum;
  }
  if (__any_sync(0xffffffffu, corr[0] != 1 || corr[1] != 1)) // the maximum is mostly unchanged
#pragma unroll
    for (int d = 0; d < HD / 8; d++) {
      st.o[d][0] *= corr[0];
      st.o[d][1] *= corr[0];
      st.o[d][2] *= corr[1];
      st.o[d][3] *= corr[1];
    }
}

// Adds P*V to the outputs.
template <int HD, int COLS, template <int> class LINES>
__device__ __forceinline__ void multiply_pv(warp_state<HD> &st, const float (&s)[COLS / 8][4],
                                            uint32_t smem_v, uint32_t col0)
{
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < COLS / 16; j++) {
    uint32_t p[4] = {pack2(s[2 * j][0], s[2 * j][1]), pack2(s[2 * j][2], s[2 * j][3]),
                     pack2(s[2 * j + 1][0], s[2 * j + 1][1]), pack2(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
    for (int d = 0; d < HD / 16; d++) {
      // tokens 0-7 and 8-15 (k halves), head-dim chunks 2d and 2d + 1
      uint32_t r[4], line = col0 + j * 16 + (lane / 8) % 2 * 8 + lane % 8;
      ldmatrix_x4_trans(r, LINES<HD>::at(smem_v, line, d * 2 + lane / 16));
      mma_16816(st.o[2 * d], p, r[0], r[1]);
      mma_16816(st.o[2 * d + 1], p, r[2], r[3]);
    }
  }
}

// Attends 16 query rows to COLS keys of the tile in shared memory, from column col0 on. The tile begins at
// token kv0.
template <int HD, int COLS, template <int> class LINES>
__device__ __forceinline__ void attend_tile(warp_state<HD> &st, const uint32_t q[HD / 16][4], uint32_t smem_k,
                                            uint32_t smem_v, uint32_t col0, uint32_t kv0,
                                            const query_positions &pos, const attention_args &a)
{
  float s[COLS / 8][4];
  multiply_qk<HD, COLS, LINES>(s, q, smem_k, col0);
  online_softmax<HD, COLS>(st, s, kv0 + col0, pos, a);
  multiply_pv<HD, COLS, LINES>(st, s, smem_v, col0);
}

// Adds l over the four lanes of a row, each of which has the sum of its own columns.
template <int HD> __device__ __forceinline__ void reduce_lanes(warp_state<HD> &st)
{
#pragma unroll
  for (int h = 0; h < 2; h++) {
    st.l[h] += __shfl_xor_sync(0xffffffffu, st.l[h], 1);
    st.l[h] += __shfl_xor_sync(0xffffffffu, st.l[h], 2);
  }
}

__device__ __forceinline__ bf16 *output_of(const attention_args &a, const td_attention_item &it,
                                           uint32_t kv_head, uint32_t p, uint32_t head_dim)
{
  uint32_t token = it.query + p / a.gqa_group, head = kv_head * a.gqa_group + p % a.gqa_group;
  return a.out + ((size_t)token * a.n_heads + head) * head_dim;
}

template <int HD>
__device__ __forceinline__ void load_queries(uint32_t q[HD / 16][4], const attention_args &a,
                                             const td_attention_item &it, uint32_t kv_head, uint32_t p0)
{
  uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t stride = (a.n_heads + 2 * a.n_kv_heads) * HD, last = it.n_tokens * a.gqa_group - 1;
  const bf16 *src[2];
  for (int h = 0; h < 2; h++) {
    uint32_t p = min(p0 + g + 8 * h, last); // rows past the end repeat the last one and are dropped later
    src[h] = a.qkv + (size_t)(it.query + p / a.gqa_group) * stride +
             (kv_head * a.gqa_group + p % a.gqa_group) * HD;
  }
#pragma unroll
  for (int c = 0; c < HD / 16; c++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      q[c][e] = *(const uint32_t *)(src[e % 2] + c * 16 + (e / 2) * 8 + 2 * t);
}
