// SwiGLU in the epilogue of a product.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

__device__ __forceinline__ float power_of_two(float x)
{
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

__device__ __forceinline__ float inverse(float x)
{
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

// silu(gate) * up, of two elements with one division: their divisors are bounded (a gate below -41 gives less
// than 1e-16), so that the product of both is finite, and neither can spoil the other.
__device__ __forceinline__ uint32_t swiglu_two(float g0, float g1, float u0, float u1)
{
  const float minus_log2_e = -1.44269504f, most = 60.0f;
  float a = 1.0f + power_of_two(fminf(g0 * minus_log2_e, most)),
        b = 1.0f + power_of_two(fminf(g1 * minus_log2_e, most));
  float inv = inverse(a * b);
  __nv_bfloat162 v = __floats2bfloat162_rn(g0 * (b * inv) * u0, g1 * (a * inv) * u1);
  return *(uint32_t *)&v;
}

// The same of one element, where its neighbours are of other tokens: a token's bits must not hang on them.
__device__ __forceinline__ float swiglu_one(float g, float u)
{
  const float minus_log2_e = -1.44269504f, most = 60.0f;
  return g * inverse(1.0f + power_of_two(fminf(g * minus_log2_e, most))) * u;
}
