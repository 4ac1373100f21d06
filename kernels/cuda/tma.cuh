// Copies of boxes of a matrix to shared memory by tensor maps (TMA; PTX ISA, cp.async.bulk.tensor; from sm_90
// on). In shared memory a box has rows of 128 bytes with wgmma's 128-byte swizzle. A k tile is 64 columns of
// a box's rows.
#pragma once

#include <cuda.h>

#include "kernels/cuda/mbarrier.cuh"

enum {
  K_TILE = 64, // bf16 columns, as wide as the swizzle
  K_TILE_ROW_BYTES = K_TILE * 2,
};

#ifdef TD_HAS_MBARRIER
__device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// `once`: for data that is read once, see read_once_policy. A map has three dimensions: 64 columns, rows, k
// tiles.
__device__ __forceinline__ void tma_load_once(uint32_t dst, const CUtensorMap *map, uint32_t bar,
                                              uint32_t row, uint32_t k_tile, uint64_t policy)
{
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
      "l"(map), "r"(bar), "r"(0), "r"(row), "r"(k_tile), "l"(policy)
      : "memory");
}

// The same for a map of four dimensions: 64 columns, rows, halves of the matrix, k tiles. Fetches both
// halves.
__device__ __forceinline__ void tma_load_halves_once(uint32_t dst, const CUtensorMap *map, uint32_t bar,
                                                     uint32_t row, uint32_t k_tile, uint64_t policy)
{
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %3, %5}], [%2], %6;" ::"r"(dst),
      "l"(map), "r"(bar), "r"(0), "r"(row), "r"(k_tile), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint32_t row,
                                         uint32_t k_tile)
{
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
               "l"(map), "r"(bar), "r"(0), "r"(row), "r"(k_tile)
               : "memory");
}

// Copies to the same address in each CTA of the cluster whose bit is set in `ctas`. Each of these CTAs'
// barriers counts the bytes.
__device__ __forceinline__ void tma_load_half_multicast(uint32_t dst, const CUtensorMap *map, uint32_t bar,
                                                        uint32_t row, uint32_t half, uint32_t k_tile,
                                                        uint16_t ctas, uint64_t policy)
{
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::"
               "cluster.L2::cache_hint "
               "[%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(dst),
               "l"(map), "r"(bar), "r"(0), "r"(row), "r"(half), "r"(k_tile), "h"(ctas), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void tma_load_multicast(uint32_t dst, const CUtensorMap *map, uint32_t bar,
                                                   uint32_t row, uint32_t k_tile, uint16_t ctas)
{
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
      "l"(map), "r"(bar), "r"(0), "r"(row), "r"(k_tile), "h"(ctas)
      : "memory");
}

// Copies a box from shared memory; rows and k tiles past the matrix's end are not written. tma_store_commit
// commits the thread's copies so far as a bulk group. After tma_store_wait_read, their source may be
// overwritten or the CTA may end.
__device__ __forceinline__ void tma_store(const CUtensorMap *map, uint32_t src, uint32_t row, uint32_t k_tile)
{
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(src), "r"(0), "r"(row), "r"(k_tile)
      : "memory");
}
__device__ __forceinline__ void tma_store_commit()
{
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void tma_store_wait_read()
{
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
#endif
