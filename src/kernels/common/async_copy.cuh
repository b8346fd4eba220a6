// 16-byte asynchronous copies by ordinary threads: for many short rows, where a bulk copy each
// would be limited by the rate at which the copy engine takes orders (about one in 35 ns).
#pragma once

#include "kernels/common/mbarrier.cuh"

namespace coppice::kernels {

// Starts a copy of 16 aligned bytes, past the first-level cache.
__device__ inline void async_copy_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}

// The same with an L2 policy (bulk_copy.cuh).
__device__ inline void async_copy_16(void* to, const void* from, uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
      "l"(from), "l"(policy)
      : "memory");
}

// Arrives once on `barrier` for this thread when all its earlier asynchronous copies are complete.
__device__ inline void async_copy_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

}  // namespace coppice::kernels
