// Passes floats from CTA to CTA without a fence or a counter.
//
// A float in memory is EMPTY until it is written, and its reader makes it EMPTY again. The reader polls the
// float itself. That costs one round trip to the L2 cache instead of four (fence, counter, the counter's
// answer, float). docs/attention-progress.md shows that the waiting ends. EMPTY is a NaN that no arithmetic
// here produces; if the input contains it, not_empty replaces it.
#pragma once

#include "kernels/cuda/internal.cuh"

#ifdef __CUDACC__
enum : uint32_t { EMPTY = 0xffffffffu };

__device__ __forceinline__ float not_empty(float v)
{
  return __float_as_uint(v) == EMPTY ? __uint_as_float(0x7fffffffu) : v;
}

template <int N>
__device__ __forceinline__ void store_relaxed(float *dst,
                                              const float (&v)[N]) // dst: aligned to AT_ONCE floats
{
  constexpr int AT_ONCE = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int i = 0; i < N; i += AT_ONCE)
    if constexpr (AT_ONCE == 4)
      asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(dst + i), "f"(v[i]),
                   "f"(v[i + 1]), "f"(v[i + 2]), "f"(v[i + 3])
                   : "memory");
    else if constexpr (AT_ONCE == 2)
      asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(dst + i), "f"(v[i]), "f"(v[i + 1])
                   : "memory");
    else
      asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(dst + i), "f"(v[i]) : "memory");
}

template <int N> __device__ __forceinline__ void publish_floats(float *dst, const float (&v)[N])
{
  float w[N];
#pragma unroll
  for (int i = 0; i < N; i++)
    w[i] = not_empty(v[i]);
  store_relaxed(dst, w);
}

template <int N> __device__ __forceinline__ void poll_floats(float (&v)[N], const float *src)
{
  constexpr int AT_ONCE = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int i = 0; i < N; i += AT_ONCE)
    if constexpr (AT_ONCE == 4)
      asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v[i]), "=f"(v[i + 1]), "=f"(v[i + 2]), "=f"(v[i + 3])
                   : "l"(src + i)
                   : "memory");
    else if constexpr (AT_ONCE == 2)
      asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
                   : "=f"(v[i]), "=f"(v[i + 1])
                   : "l"(src + i)
                   : "memory");
    else
      asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v[i]) : "l"(src + i) : "memory");
}

template <int N> __device__ __forceinline__ bool is_empty(const float (&v)[N])
{
  bool any_empty = false;
#pragma unroll
  for (int i = 0; i < N; i++)
    any_empty |= __float_as_uint(v[i]) == EMPTY;
  return any_empty;
}

template <int N> __device__ __forceinline__ void reset_floats(float *dst)
{
  float v[N];
#pragma unroll
  for (int i = 0; i < N; i++)
    v[i] = __uint_as_float(EMPTY);
  store_relaxed(dst, v);
}

// Tells CTAs that wait for the flag that this CTA's writes are visible. One thread calls it, after a barrier
// of all threads that wrote.
__device__ __forceinline__ void set_flag(uint64_t *flag, uint64_t value)
{
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ __forceinline__ void wait_flag(const uint64_t *flag, uint64_t value)
{
  uint64_t seen;
  do
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
  while (seen != value);
}
#endif
