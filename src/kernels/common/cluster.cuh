// Blocks of a cluster: their barrier and each other's shared memory (sm_90 and later).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// All threads of all blocks of the cluster; orders their shared-memory accesses.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// The two halves of cluster_sync().
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where `shared_address` lies in block `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(uint32_t shared_address, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
  return address;
}

__device__ __forceinline__ float4 cluster_load(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ float2 cluster_load_pair(uint32_t address) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void cluster_store(uint32_t address, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Stores in the background; then 4 bytes count as arrived on `barrier` of the same block.
__device__ __forceinline__ void cluster_store_async(uint32_t address, uint32_t value,
                                                    uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
          address),
      "r"(value), "r"(barrier)
      : "memory");
}

}  // namespace coppice::kernels
