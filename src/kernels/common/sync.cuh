// Ordering between warps of a block and between blocks of a grid.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// Barrier `id` (1 to 15; 0 is __syncthreads) among `threads` threads of the block.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Adds to a counter of the grid after all writes that happen before this call.
__device__ inline void add_release(uint32_t* counter, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Adds to a counter of the grid, ordered against everything before and after; returns its old
// value.
__device__ inline uint32_t fetch_add_acq_rel(uint32_t* counter, uint32_t value) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(value)
               : "memory");
  return before;
}

// Reads a counter of the grid; what was released with its value is visible afterwards.
__device__ inline uint32_t load_acquire(const uint32_t* counter) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// A word of data and its tag in one eight-byte access: whoever sees the tag has the data.
__device__ inline void store_tagged(uint64_t* to, uint32_t data, uint32_t tag) {
  asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(to),
               "l"(static_cast<uint64_t>(tag) << 32 | data)
               : "memory");
}

// Two such words, 16-byte aligned; each is read in one piece.
__device__ inline ulonglong2 load_tagged(const uint64_t* from) {
  ulonglong2 words;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words.x), "=l"(words.y)
               : "l"(from)
               : "memory");
  return words;
}

}  // namespace coppice::kernels
