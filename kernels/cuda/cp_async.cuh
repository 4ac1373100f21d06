// Copies from global to shared memory that a thread starts and does not wait for (PTX ISA, cp.async; from
// sm_80 on). Bulk copies, which one thread starts for many and an mbarrier counts, are in mbarrier.cuh and
// tma.cuh.
#pragma once

#include "kernels/cuda/mbarrier.cuh" // shared_address

// dst: in shared memory, an address there or a pointer; both are multiples of the size. 16 bytes go past the
// L1 cache.
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void *src)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

__device__ __forceinline__ void cp_async_16(void *dst, const void *src)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}

__device__ __forceinline__ void cp_async_4(void *dst, const void *src)
{
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}

// All that this thread started; other threads' copies can be read after a barrier with them.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
