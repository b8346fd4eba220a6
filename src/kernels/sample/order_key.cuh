// Integer keys that sort like the floats they come from, alone or with a token id as tie-break.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// Unsigned key with the order of the floats; -0 counts as +0. The caller keeps NaN out.
__device__ __forceinline__ uint32_t order_key(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ float order_key_value(uint32_t key) {
  return __uint_as_float(key ^ (((key >> 31) - 1u) | 0x80000000u));
}

// Larger value first, then lower index. No valid entry has key 0.
__device__ __forceinline__ uint64_t ranked_key(float value, uint32_t index) {
  return static_cast<uint64_t>(order_key(value)) << 32 | static_cast<uint32_t>(~index);
}

__device__ __forceinline__ float ranked_key_value(uint64_t key) {
  return order_key_value(static_cast<uint32_t>(key >> 32));
}

__device__ __forceinline__ uint32_t ranked_key_index(uint64_t key) {
  return ~static_cast<uint32_t>(key);
}

__device__ __forceinline__ uint64_t warp_max(uint64_t key) {
  const auto high = static_cast<uint32_t>(key >> 32);
  const uint32_t best = __reduce_max_sync(0xffffffffu, high);
  const uint32_t low =
      __reduce_max_sync(0xffffffffu, high == best ? static_cast<uint32_t>(key) : 0u);
  return static_cast<uint64_t>(best) << 32 | low;
}

}  // namespace coppice::kernels
