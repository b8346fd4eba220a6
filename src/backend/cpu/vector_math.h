// Sums of the reference ops: several fp32 partial sums in a fixed order, so that long rows lose
// little accuracy and a result never depends on where a row starts.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace coppice::cpu {

inline constexpr std::int64_t kPartials = 16;

inline float sum_partials(std::array<float, kPartials> partials) {
  for (std::size_t width = kPartials / 2; width > 0; width /= 2)
    for (std::size_t i = 0; i < width; ++i) partials[i] += partials[i + width];
  return partials[0];
}

inline float dot(const float* a, const float* b, std::int64_t count) {
  std::array<float, kPartials> partials{};
  std::int64_t i = 0;
  for (; i + kPartials <= count; i += kPartials)
    for (std::int64_t lane = 0; lane < kPartials; ++lane)
      partials[static_cast<std::size_t>(lane)] += a[i + lane] * b[i + lane];
  for (std::int64_t lane = 0; i + lane < count; ++lane)
    partials[static_cast<std::size_t>(lane)] += a[i + lane] * b[i + lane];
  return sum_partials(partials);
}

// out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
inline void normalize(const float* x, const float* weight, float eps, std::int64_t size,
                      float* out) {
  const float mean = dot(x, x, size) / static_cast<float>(size);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  for (std::int64_t i = 0; i < size; ++i) out[i] = x[i] * inverse * weight[i];
}

inline float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

inline float silu(float x) {
  return x * sigmoid(x);
}

}  // namespace coppice::cpu
