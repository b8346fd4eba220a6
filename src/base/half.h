// Scalar conversions between fp32 and the 16- and 8-bit float formats (round to nearest even).
#pragma once

#include <bit>
#include <cstdint>

namespace coppice {

// bfloat16: the upper half of an IEEE binary32.
struct bf16 {
  std::uint16_t bits = 0;
};

// IEEE binary16.
struct f16 {
  std::uint16_t bits = 0;
};

inline float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline float to_float(f16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

inline f16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Adding 0.5 aligns the subnormal's mantissa with the low bits and rounds in hardware.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

// OCP FP8 E4M3 (finite only, 0x7f/0xff are NaN), as in DeepSeek-V3 block-quantised checkpoints.
inline float f8e4m3_to_float(std::uint8_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x80u) << 24;
  const std::uint32_t exponent = (value >> 3) & 0xfu;
  const std::uint32_t mantissa = value & 0x7u;
  if (exponent == 0xfu && mantissa == 0x7u) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-9f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

}  // namespace coppice
