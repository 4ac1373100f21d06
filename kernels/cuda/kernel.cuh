// What all kernels use: programmatic dependent launch, reductions over a warp, and loads of eight bf16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

typedef __nv_bfloat16 bf16;

// log2 of a page's token count, which is a power of two. Kernels shift by it, because a division would take
// as long as the rest of the address arithmetic.
__device__ __forceinline__ uint32_t log2_of(uint32_t n) { return 31 - __clz(n); }

// Lets the next kernel in the stream start while this one still runs (programmatic dependent launch).
__device__ __forceinline__ void pdl_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernels before have ended and their writes are visible.
__device__ __forceinline__ void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float warp_sum(float v)
{
  for (int o = 16; o > 0; o >>= 1)
    v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

__device__ __forceinline__ float warp_max(float v)
{
  for (int o = 16; o > 0; o >>= 1)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// Eight bf16, the 16-byte unit of every load and store here. The compiler would copy a struct of eight bf16
// members in loads and stores of 4 bytes.
struct bf16x8 {
  uint4 pairs;
};

__device__ __forceinline__ void unpack(const bf16x8 &v, float f[8])
{
  const uint32_t pairs[4] = {v.pairs.x, v.pairs.y, v.pairs.z, v.pairs.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    f[2 * i] = __uint_as_float(pairs[i] << 16);
    f[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ bf16x8 pack(const float f[8])
{
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
    memcpy(&pairs[i], &pair, sizeof pair);
  }
  return {make_uint4(pairs[0], pairs[1], pairs[2], pairs[3])};
}
