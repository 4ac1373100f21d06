// Barriers in shared memory that count arrivals and bytes of asynchronous copies (PTX ISA, mbarrier and
// cp.async.bulk; from sm_90 on). Addresses are those of shared_address.
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

// After the inits, by the thread that did them, which may copy at once; others when the block has met. A copy
// reaches its barrier by the generic proxy (PTX ISA, cp.async.bulk), so none needs a fence of proxies.
__device__ __forceinline__ void fence_barrier_init()
{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives, and lets the phase end only when so many more bytes have come.
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// Until the phase of this parity has ended. A fresh barrier is in phase 0; "the one before", parity 1, has
// ended.
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
  asm volatile("{.reg .pred done;\n"
               "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;}" ::"r"(bar),
               "r"(parity)
               : "memory");
}

// bar: of another CTA, by address_in_cluster (cluster.cuh). Without `.release.cluster`, which would be a
// fence of the whole GPU: what arrives here has only read.
__device__ __forceinline__ void barrier_arrive_in_cluster(uint32_t bar)
{
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

// bytes: a multiple of 16, as are both addresses.
__device__ __forceinline__ void copy_bulk(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
      "l"(src), "r"(bytes), "r"(bar)
      : "memory");
}

// To the same address in all CTAs of the cluster that `ctas` names, bit by bit; each one's barrier counts the
// bytes.
__device__ __forceinline__ void copy_bulk_to(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar,
                                             uint16_t ctas)
{
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
               "l"(src), "r"(bytes), "r"(bar), "h"(ctas)
               : "memory");
}

// Of what is read once: without this hint memory gives a fifth less than it can (kernels/cuda/README.md).
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

// Before asynchronous reads of what this thread wrote to shared memory by ordinary stores, or of what the
// kernels before wrote to global memory by theirs.
__device__ __forceinline__ void fence_shared_writes()
{
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_global_writes()
{
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// fence_barrier_init with a fence of proxies: attention of one row takes 1 % longer without (192 steps of the
// trace bucketed B1 in two runs), a product less.
__device__ __forceinline__ void barriers_made()
{
  fence_barrier_init();
  fence_shared_writes();
}
#endif
