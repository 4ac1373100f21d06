// Layout of a plan's partials (kernels/attention/plan.h), and the arithmetic that adds them up.
#pragma once

#include "kernels/cuda/attention.cuh"

#include <cuda_fp16.h>

#ifdef __CUDACC__
// Adds a term to a sum. Explicit rounding keeps the operations the same everywhere.
__device__ __forceinline__ float fold(float sum, float f, float term, float w)
{
  return __fmaf_rn(term, w, __fmul_rn(sum, f));
}

// Factors for a sum with maximum *m (f) and for a term with maximum term_m (w). *m becomes the larger
// maximum.
__device__ __forceinline__ void fold_factors(float *m, float term_m, float *f, float *w)
{
  float top = fmaxf(*m, term_m), safe = top == -INFINITY ? 0 : top;
  *f = exp2f(*m - safe);
  *w = exp2f(term_m - safe);
  *m = top;
}

// The end of a partial, after its elements (TD_ATTENTION_PARTIAL_BYTES).
struct partial_end {
  float m, l, unit, none;
};

static_assert(TD_ATTENTION_PARTIAL_BYTES(64) == 144 && TD_ATTENTION_PARTIAL_BYTES(96) == 208 &&
                  TD_ATTENTION_PARTIAL_BYTES(128) == 272,
              "elements, and what is behind them at multiples of 16");

template <int HD> __device__ __forceinline__ unsigned char *partial_at(unsigned char *partials, size_t i)
{
  return partials + i * TD_ATTENTION_PARTIAL_BYTES(HD);
}

template <int HD>
__device__ __forceinline__ void put_end(unsigned char *partial, float m, float l, float unit)
{
  *(float4 *)(partial + 2 * HD) = make_float4(m, l, unit, 0);
}

template <int HD> __device__ __forceinline__ partial_end end_of(const unsigned char *partial)
{
  float4 v = __ldcg((const float4 *)(partial + 2 * HD));
  return {v.x, v.y, v.z, v.w};
}

// The unit in which a partial's elements are stored, if the largest is `top`. A NaN stays NaN in any unit.
__device__ __forceinline__ float unit_of(float top) { return top >= 1e-37f ? top : 1; }

__device__ __forceinline__ __half2 in_units(float a, float b, float per_unit)
{
  return __floats2half2_rn(a * per_unit, b * per_unit);
}

__device__ __forceinline__ void put_pair(unsigned char *partial, uint32_t element, __half2 v)
{
  *(__half2 *)(partial + 2 * element) = v;
}

// Index of this thread's 16-byte part j, in a partial in the order of a tile's threads. The part holds
// elements 8 (4 j + k) + 2 t and the next one, for k = 0 .. 3 and t = threadIdx.x % 4.
__device__ __forceinline__ uint32_t fragment_at(uint32_t j) { return j * 4 + threadIdx.x % 4; }

// One element, in a partial in the order of a tile's threads or in the elements' own order.
template <bool IN_TILES>
__device__ __forceinline__ void put_element(unsigned char *partial, uint32_t element, __half v)
{
  uint32_t part = element / 32 * 4 + element % 8 / 2, at = part * 8 + element / 8 % 4 * 2 + element % 2;
  ((__half *)partial)[IN_TILES ? at : element] = v;
}

// The unit of row h (0 or 1) of a thread's two rows in a warpgroup's tile (consumer in attention_wgmma.cuh).
// *sum becomes the row's softmax sum.
template <int HD, class TILE>
__device__ __forceinline__ float unit_of_tile_row(const TILE &c, int h, float *sum)
{
  float top = 0;
  *sum = c.l[h];
  *sum += __shfl_xor_sync(0xffffffffu, *sum, 1);
  *sum += __shfl_xor_sync(0xffffffffu, *sum, 2);
#pragma unroll
  for (int j = 0; j < HD / 8; j++)
    top = fmaxf(top, fmaxf(fabsf(c.o[4 * j + 2 * h]), fabsf(c.o[4 * j + 2 * h + 1])));
  top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
  return unit_of(fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)));
}
#endif
