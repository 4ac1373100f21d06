// Boxes of a matrix to shared memory by tensor maps (PTX ISA, cp.async.bulk.tensor; from sm_90 on). They lie
// there in rows of 128 bytes, swizzled as wgmma wants them: a k tile is 64 columns of so many rows.
#pragma once

#include <cuda.h>

#include "kernels/cuda/mbarrier.cuh"

enum {
  K_TILE = 64, // columns, of bf16: the swizzle's width
  K_TILE_ROW_BYTES = K_TILE * 2,
};

#ifdef TD_HAS_MBARRIER
__device__ __forceinline__ void read_map(const CUtensorMap *map)
{
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Maps have three dimensions: 64 columns, rows, and which k tile.
__device__ __forceinline__ void fetch_once(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint32_t row,
                                           uint32_t k_tile, uint64_t policy)
{
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
      "l"(map), "r"(bar), "r"(0), "r"(row), "r"(k_tile), "l"(policy)
      : "memory");
}

// The same of a map of four dimensions: 64 columns, rows, which half of the matrix, which k tile.
__device__ __forceinline__ void fetch_pairs_once(uint32_t dst, const CUtensorMap *map, uint32_t bar,
                                                 uint32_t row, uint32_t k_tile, uint64_t policy)
{
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %3, %5}], [%2], %6;" ::"r"(dst),
      "l"(map), "r"(bar), "r"(0), "r"(row), "r"(k_tile), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void fetch(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint32_t row,
                                      uint32_t k_tile)
{
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
               "l"(map), "r"(bar), "r"(0), "r"(row), "r"(k_tile)
               : "memory");
}

// To the same address in all CTAs of the cluster that `ctas` names, bit by bit; each one's barrier counts the
// bytes.
__device__ __forceinline__ void fetch_half_to(uint32_t dst, const CUtensorMap *map, uint32_t bar,
                                              uint32_t row, uint32_t half, uint32_t k_tile, uint16_t ctas,
                                              uint64_t policy)
{
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::"
               "cluster.L2::cache_hint "
               "[%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(dst),
               "l"(map), "r"(bar), "r"(0), "r"(row), "r"(half), "r"(k_tile), "h"(ctas), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void fetch_to(uint32_t dst, const CUtensorMap *map, uint32_t bar, uint32_t row,
                                         uint32_t k_tile, uint16_t ctas)
{
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
      "l"(map), "r"(bar), "r"(0), "r"(row), "r"(k_tile), "h"(ctas)
      : "memory");
}

// From shared memory; rows and k tiles past the end are left out. The copies that a thread asked for are its
// group once it ends it; what they read may be written again, or the CTA end, after the wait.
__device__ __forceinline__ void store_box(const CUtensorMap *map, uint32_t src, uint32_t row, uint32_t k_tile)
{
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(src), "r"(0), "r"(row), "r"(k_tile)
      : "memory");
}
__device__ __forceinline__ void end_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_stores_read()
{
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
#endif
