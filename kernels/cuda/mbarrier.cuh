// mbarriers: barriers in shared memory that count arrivals and the bytes of asynchronous copies (PTX ISA,
// mbarrier and cp.async.bulk; from sm_90 on). All addresses are 32-bit shared addresses (shared_address).
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TD_HAS_MBARRIER 1
#endif

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
  return (uint32_t)__cvta_generic_to_shared(p);
}

#ifdef TD_HAS_MBARRIER
__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t arrivals)
{
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Call after barrier_init, in the same thread. That thread may start copies right after; other threads only
// after a CTA barrier. A bulk copy signals its mbarrier through the generic proxy (PTX ISA, cp.async.bulk),
// so no copy needs a proxy fence here.
__device__ __forceinline__ void fence_barrier_init()
{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives, and makes the phase wait for that many bytes more.
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// Waits until the phase of this parity has ended. A fresh barrier is in phase 0; the phase before it, parity
// 1, counts as ended.
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
  asm volatile("{.reg .pred done;\n"
               "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;}" ::"r"(bar),
               "r"(parity)
               : "memory");
}

// bar: a barrier of another CTA, by address_in_cluster (cluster.cuh). The arrival has no `.release.cluster`,
// which would act as a fence of the whole GPU. It needs none, because the arriving warp has only read.
__device__ __forceinline__ void barrier_arrive_in_cluster(uint32_t bar)
{
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

// bytes and both addresses: multiples of 16.
__device__ __forceinline__ void copy_bulk(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
      "l"(src), "r"(bytes), "r"(bar)
      : "memory");
}

// Copies to the same address in each CTA of the cluster whose bit is set in `ctas`. Each of these CTAs'
// barriers counts the bytes.
__device__ __forceinline__ void copy_bulk_multicast(uint32_t dst, const void *src, uint32_t bytes,
                                                    uint32_t bar, uint16_t ctas)
{
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
               "l"(src), "r"(bytes), "r"(bar), "h"(ctas)
               : "memory");
}

// L2 policy for data that is read once (evict first). Without it, loads reach a fifth less bandwidth
// (kernels/cuda/README.md).
__device__ __forceinline__ uint64_t read_once_policy()
{
  uint64_t p;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  return p;
}

__device__ __forceinline__ void copy_bulk_once(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar,
                                               uint64_t policy)
{
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], "
               "%2, [%3], %4;" ::"r"(dst),
               "l"(src), "r"(bytes), "r"(bar), "l"(policy)
               : "memory");
}

// Proxy fences. An asynchronous copy or wgmma needs one before it reads what this thread wrote to shared
// memory with ordinary stores, or what earlier kernels wrote to global memory with theirs.
__device__ __forceinline__ void fence_shared_writes()
{
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_global_writes()
{
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// fence_barrier_init and a proxy fence. The proxy fence is not needed for correctness, but without it
// attention of one row takes 1 % longer (192 steps of the trace bucketed B1 in two runs), and a GEMM takes
// longer by less than that.
__device__ __forceinline__ void publish_barriers()
{
  fence_barrier_init();
  fence_shared_writes();
}
#endif
