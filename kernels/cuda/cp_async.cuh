// Asynchronous copies from global to shared memory by single threads (PTX ISA, cp.async; from sm_80 on). Bulk
// copies, which one thread starts and an mbarrier counts, are in mbarrier.cuh and tma.cuh.
#pragma once

#include "kernels/cuda/mbarrier.cuh" // shared_address

// dst: shared memory, as a 32-bit shared address or as a pointer. Both addresses must be multiples of the
// size. The copy of 16 bytes bypasses L1.
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

// Waits for all copies that this thread started. Other threads' copies can be read only after a barrier.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
