// Boxes of a matrix to shared memory by tensor maps (PTX ISA, cp.async.bulk.tensor; from sm_90 on). They lie there in rows of
// 128 bytes, swizzled as wgmma wants them.
#pragma once

#include <cuda.h>

#include "kernels/cuda/mbarrier.cuh"

#ifdef TD_HAS_MBARRIER
__device__ __forceinline__ void read_map(const CUtensorMap *map)
{
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Maps have three dimensions: 64 columns, rows, and which 64 columns.
__device__ __forceinline__ void fetch_once(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint32_t row, uint32_t slice,
                                           uint64_t policy)
{
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
               "l"(map), "r"(bar), "r"(0), "r"(row), "r"(slice), "l"(policy)
               : "memory");
}

// The same of a map of four dimensions: 64 columns, rows, which half of the matrix, which 64 columns.
__device__ __forceinline__ void fetch_pairs_once(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint32_t row, uint32_t slice,
                                                 uint64_t policy)
{
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%3, %4, %3, %5}], [%2], %6;" ::"r"(dst),
               "l"(map), "r"(bar), "r"(0), "r"(row), "r"(slice), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void fetch(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint32_t row, uint32_t slice)
{
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
               "l"(map), "r"(bar), "r"(0), "r"(row), "r"(slice)
               : "memory");
}
#endif
