// Tensor copies of cached keys with an L2 policy.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/mbarrier.cuh"

namespace coppice::kernels {

// The L2 policy of keys: those that are read once are the first to go, which leaves room for
// partial results.
__device__ __forceinline__ uint64_t mla_key_policy(bool read_once) {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return read_once ? evict_first_policy() : policy;
}

// Copies the box of `map` that starts at a cache row and a block of 64 columns.
__device__ __forceinline__ void mla_copy_keys(uint32_t to, const CUtensorMap* map, int row,
                                              int column_block, uint64_t* barrier,
                                              uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(0), "r"(row), "r"(column_block), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

}  // namespace coppice::kernels
