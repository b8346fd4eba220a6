// Two-dimensional bulk tensor copies (TMA) from global to shared memory.
#pragma once

#include <cuda.h>

#include "kernels/common/mbarrier.cuh"

namespace coppice::kernels {

// Copies the box of `map` whose first element is (column, row); completes on `barrier`.
__device__ __forceinline__ void tensor_copy_to_shared(uint32_t to, const CUtensorMap* map,
                                                      int column, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

}  // namespace coppice::kernels
