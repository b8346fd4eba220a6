// Philox4x32-10 (Salmon et al., SC'11) and Gumbel noise, number for number those of base/rng.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// First word of the block that `counter` gives under `key`.
__device__ __forceinline__ uint32_t philox4x32_first(uint4 counter, uint64_t key) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * counter.x;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * counter.z;
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter.y ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter.w ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter.x;
}

// In the open interval (0, 1): 23 bits plus half a step.
__device__ __forceinline__ float uniform_open(uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
}

// Lies in (kGumbelMin, kGumbelMax) for every uniform_open value.
inline constexpr float kGumbelMin = -2.82f;
inline constexpr float kGumbelMax = 16.65f;

__device__ __noinline__ inline float gumbel_noise(uint32_t token_id, uint32_t position,
                                                  uint32_t choice_index, uint64_t seed) {
  const uint4 counter = {token_id, position, choice_index, 0};
  return -logf(-logf(uniform_open(philox4x32_first(counter, seed))));
}

}  // namespace coppice::kernels
