// Random contents by position: element i of stream `seed` is the same on the host and on a GPU,
// whoever computes it and in whatever order. For benchmarks, where a reference needs a few values
// of a tensor that only exists on the device.
#pragma once

#include <cstdint>

namespace coppice {

constexpr std::uint32_t random_word(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t key = seed * 0x9e3779b97f4a7c15u + index;
  key = (key ^ (key >> 33)) * 0xff51afd7ed558ccdu;
  key = (key ^ (key >> 33)) * 0xc4ceb9fe1a85ec53u;
  return static_cast<std::uint32_t>((key ^ (key >> 33)) >> 16);
}

// Uniform in (-amplitude, amplitude): the value before it is rounded to the tensor's type.
constexpr float random_uniform(std::uint64_t seed, std::uint64_t index, float amplitude) {
  const std::uint32_t bits = random_word(seed, index) & 0xffffu;
  return ((static_cast<float>(bits) + 0.5f) * 0x1p-15f - 1.0f) * amplitude;
}

// Nearly normal with the given standard deviation, to 4.9 of them: for logits, whose largest values
// must be few.
constexpr float random_bell(std::uint64_t seed, std::uint64_t index, float deviation) {
  std::int32_t sum = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const std::uint32_t word = random_word(seed, 4 * index + i);
    sum += static_cast<std::int32_t>(word & 0xffffu) + static_cast<std::int32_t>(word >> 16);
  }
  constexpr float kDeviation = 53510.0f;  // of the sum of eight 16-bit numbers, mean 262140
  return static_cast<float>(sum - 262140) * (deviation / kDeviation);
}

// Eight INT4 values in [-7, 7], as trained files hold them: nibble 0 (value -8) becomes 8 (value
// 0).
constexpr std::uint32_t random_nibbles(std::uint64_t seed, std::uint64_t index) {
  const std::uint32_t word = random_word(seed, index);
  std::uint32_t result = word;
  for (int shift = 0; shift < 32; shift += 4)
    if (((word >> shift) & 15u) == 0) result |= 8u << shift;
  return result;
}

// The scale of one group of 32: within a quarter of `typical`, before it is rounded to bf16.
constexpr float random_scale(std::uint64_t seed, std::uint64_t index, float typical) {
  return typical + random_uniform(seed, index, 0.25f * typical);
}

}  // namespace coppice
