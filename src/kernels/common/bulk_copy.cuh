// One-dimensional bulk copies from global to shared memory (the copy engine of sm_90 and later).
#pragma once

#include "kernels/common/mbarrier.cuh"

namespace coppice::kernels {

// L2 policy for data that is read once, such as weights: first to be evicted.
__device__ inline uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Starts a copy of `bytes` (a multiple of 16, both sides 16-byte aligned); completes on `barrier`.
__device__ inline void bulk_copy_to_shared(void* to, const void* from, uint32_t bytes,
                                           uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// The same with the default policy, for data that other blocks will read too.
__device__ inline void bulk_copy_to_shared(void* to, const void* from, uint32_t bytes,
                                           uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Orders earlier reads and writes of global memory by ordinary instructions before later bulk
// copies of this thread.
__device__ inline void bulk_copy_fence() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// The same for shared memory that bulk copies will overwrite.
__device__ inline void bulk_copy_shared_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace coppice::kernels
