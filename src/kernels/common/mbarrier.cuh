// Shared-memory barriers (mbarrier) that order bulk copies against the warps that read them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// 32-bit shared-window address of a shared-memory pointer, as PTX wants it.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

// Makes barrier initialisation visible to the copy engine; call before the block's first sync.
__device__ inline void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Arrives once the loads of shared memory behind `seen` have returned: whenever an arrival lets
// someone overwrite what this thread has just read. A plain arrival does not wait for them. They
// may stand in a queue behind stores to global memory that are held up while the arrival overtakes
// them, and then they read what comes next. For one-dimensional blocks: their threadIdx.y is a zero
// that the compiler does not know.
__device__ inline void mbarrier_arrive_after(uint64_t* barrier, uint32_t seen) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier) +
                                                                (seen & threadIdx.y))
               : "memory");
}

// Arrives and announces how many bytes the copy engine will still deliver in this phase.
__device__ inline void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Returns once the phase of the given parity has completed.
__device__ inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// The same where another block of the cluster arrives: what it wrote before is visible then.
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace coppice::kernels
