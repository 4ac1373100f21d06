// Clusters of CTAs (PTX ISA, from sm_90 on): a CTA's rank, the addresses of other CTAs' shared memory, and a
// barrier over all threads of the cluster. On older GPUs a CTA is alone and the barrier does nothing.
#pragma once

#include <cstdint>

__device__ __forceinline__ void cluster_arrive()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_sync()
{
  cluster_arrive();
  cluster_wait();
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t cluster_rank()
{
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

// Maps a shared-memory address of this CTA to the same place in the CTA of that rank.
__device__ __forceinline__ uint32_t address_in_cluster(uint32_t address, uint32_t rank)
{
  uint32_t a;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(address), "r"(rank));
  return a;
}
#endif
