// Handing over floats from block to block without a fence or a count.
//
// A word is ABSENT until it is written, and again once it was read: who needs it waits for it, which is one
// way through the L2 cache instead of the four of a fence, a count, its answer and the word. Why waiting
// ends: docs/attention-progress.md. What computes never makes this NaN; one that the input had is changed.
#pragma once

#include "kernels/cuda/internal.cuh"

#ifdef __CUDACC__
enum : uint32_t { ABSENT = 0xffffffffu };

__device__ __forceinline__ float present(float v)
{
  return __float_as_uint(v) == ABSENT ? __uint_as_float(0x7fffffffu) : v;
}

template <int N>
__device__ __forceinline__ void store_words(float *dst,
                                            const float (&v)[N]) // aligned to as many as go at once
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

template <int N> __device__ __forceinline__ void put_words(float *dst, const float (&v)[N])
{
  float w[N];
#pragma unroll
  for (int i = 0; i < N; i++)
    w[i] = present(v[i]);
  store_words(dst, w);
}

template <int N> __device__ __forceinline__ void ask_words(float (&v)[N], const float *src)
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

template <int N> __device__ __forceinline__ bool is_absent(const float (&v)[N])
{
  bool absent = false;
#pragma unroll
  for (int i = 0; i < N; i++)
    absent |= __float_as_uint(v[i]) == ABSENT;
  return absent;
}

template <int N> __device__ __forceinline__ void forget_words(float *dst)
{
  float v[N];
#pragma unroll
  for (int i = 0; i < N; i++)
    v[i] = __uint_as_float(ABSENT);
  store_words(dst, v);
}

// That a block's writes are there, to whoever awaits it: by one thread behind a meeting of all.
__device__ __forceinline__ void say_done(uint64_t *word, uint64_t now)
{
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(now) : "memory");
}

__device__ __forceinline__ void await_done(const uint64_t *word, uint64_t now)
{
  uint64_t seen;
  do
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
  while (seen != now);
}
#endif
