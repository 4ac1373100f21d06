// SwiGLU as the epilogue of a GEMM.
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

// silu(gate) * up for two elements of one token, with one division for both. Each divisor is bounded (a gate
// below -41 gives less than 1e-16), so their product is finite and one element cannot make the other inf or
// NaN.
__device__ __forceinline__ uint32_t swiglu_two(float g0, float g1, float u0, float u1)
{
  const float minus_log2_e = -1.44269504f, most = 60.0f;
  float a = 1.0f + power_of_two(fminf(g0 * minus_log2_e, most)),
        b = 1.0f + power_of_two(fminf(g1 * minus_log2_e, most));
  float inv = inverse(a * b);
  __nv_bfloat162 v = __floats2bfloat162_rn(g0 * (b * inv) * u0, g1 * (a * inv) * u1);
  return *(uint32_t *)&v;
}

// The same for one element, for layouts where its neighbours belong to other tokens: a token's bits must not
// depend on other tokens.
__device__ __forceinline__ float swiglu_one(float g, float u)
{
  const float minus_log2_e = -1.44269504f, most = 60.0f;
  return g * inverse(1.0f + power_of_two(fminf(g * minus_log2_e, most))) * u;
}
