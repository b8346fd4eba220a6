// Philox4x32-10 (Salmon et al., SC'11): a counter-based generator. The same key and counter give
// the same numbers on every machine and backend, so noise can be tied to (seed, choice, position,
// token id).
#pragma once

#include <array>
#include <cstdint>

namespace coppice {

using PhiloxCounter = std::array<std::uint32_t, 4>;

inline PhiloxCounter philox4x32(PhiloxCounter counter, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// A float in the open interval (0, 1): 23 random bits plus half a step, exact in fp32.
inline float uniform_open(std::uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
}

}  // namespace coppice
