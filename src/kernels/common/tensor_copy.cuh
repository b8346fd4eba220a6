// Bulk tensor copies (TMA) from global to shared memory.
#pragma once

#include <cuda.h>

#include "kernels/common/mbarrier.cuh"

namespace coppice::kernels {

// Copies the box of `map` whose first element is (x, y, z), x fastest; completes on `barrier`.
__device__ __forceinline__ void tensor_copy_to_shared(uint32_t to, const CUtensorMap* map, int x,
                                                      int y, int z, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}

// The same in two dimensions, with an L2 policy (bulk_copy.cuh) or without.
__device__ __forceinline__ void tensor_copy_to_shared(uint32_t to, const CUtensorMap* map, int x,
                                                      int y, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tensor_copy_to_shared(uint32_t to, const CUtensorMap* map, int x,
                                                      int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
      : "memory");
}

// The same in four dimensions, with an L2 policy.
__device__ __forceinline__ void tensor_copy_to_shared(uint32_t to, const CUtensorMap* map, int x,
                                                      int y, int z, int w, uint64_t* barrier,
                                                      uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

}  // namespace coppice::kernels
