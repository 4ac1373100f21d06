// Norm and rotation of one head. A head belongs to a segment of a warp's lanes. Each lane has two 16-byte
// chunks of the head, which together hold whole rotation pairs.
#pragma once

#include "kernels/cuda/internal.cuh"

#ifdef __CUDACC__
// Cosine and sine of one pair at a position, both multiplied by the attention factor.
__device__ __forceinline__ float2 rotation_of(int32_t pos, float inv_freq, float attn_factor)
{
  float sn, cs;
  sincosf((float)pos * inv_freq, &sn, &cs);
  return make_float2(cs * attn_factor, sn * attn_factor);
}

// The chunks of a lane. halves: pairs as in TD_ROPE_HALVES.
__device__ __forceinline__ uint32_t first_chunk(uint32_t lane, bool halves)
{
  return halves ? lane : 2 * lane;
}
__device__ __forceinline__ uint32_t second_chunk(uint32_t lane, uint32_t rotary_dim, bool halves)
{
  return halves ? lane + rotary_dim / 16 : 2 * lane + 1;
}

// The first of the lane's eight pairs, which follow each other.
__device__ __forceinline__ uint32_t first_pair(uint32_t chunk0, bool halves)
{
  return halves ? chunk0 * 8 : chunk0 * 4;
}

// Pair i is elements i and i + rotary_dim / 2 with halves, else 2i and 2i + 1. rotations: of the lane's
// pairs.
__device__ __forceinline__ void rotate(float x[2][8], const float2 *rotations, bool halves)
{
#pragma unroll
  for (int k = 0; k < 8; k++) {
    float2 t = rotations[k];
    float *lo = halves ? &x[0][k] : &x[k / 4][k % 4 * 2], *hi = halves ? &x[1][k] : lo + 1;
    float u = *lo * t.x - *hi * t.y;
    *hi = *hi * t.x + *lo * t.y;
    *lo = u;
  }
}

// Sum over a segment of `lanes` lanes, a power of two. mask: the lanes of the warp that take part, whole
// segments.
__device__ __forceinline__ float segment_sum(float v, uint32_t lanes, uint32_t mask)
{
  for (uint32_t o = lanes / 2; o > 0; o >>= 1)
    v += __shfl_xor_sync(mask, v, o);
  return v;
}

__device__ __forceinline__ float sum_of_squares(const float x[2][8])
{
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 8; k++)
    sum += x[0][k] * x[0][k] + x[1][k] * x[1][k];
  return sum;
}

__device__ __forceinline__ void normalise(float x[2][8], const float *norm, const uint32_t chunk[2],
                                          float scale)
{
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int k = 0; k < 8; k++)
      x[c][k] *= scale * norm[chunk[c] * 8 + k];
}

// Reads the lane's two chunks of a head, and normalises and rotates them. norm: weights, or null; rotations:
// of the head's position, or null (V).
template <int HD>
__device__ __forceinline__ void rotate_head(bf16x8 out[2], const bf16 *head, const uint32_t chunk[2],
                                            const float *norm, float eps, const float2 *rotations,
                                            bool halves)
{
  constexpr uint32_t LANES = HD / 16;
  float v[2][8];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    *(uint4 *)&out[c] = __ldcg((const uint4 *)(head + chunk[c] * 8));
    unpack(out[c], v[c]);
  }
  if constexpr ((LANES & (LANES - 1)) == 0) {
    uint32_t mine = ((1u << LANES) - 1) << (threadIdx.x % 32 / LANES * LANES); // other heads may be done
    if (norm)
      normalise(v, norm, chunk, rsqrtf(segment_sum(sum_of_squares(v), LANES, mine) / (float)HD + eps));
  }
  if (!rotations)
    return;
  rotate(v, rotations, halves);
#pragma unroll
  for (int c = 0; c < 2; c++)
    out[c] = pack(v[c]);
}
#endif
