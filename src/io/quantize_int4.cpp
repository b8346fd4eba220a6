#include "io/quantize_int4.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace coppice {
namespace {

constexpr int kLargest = 7;
constexpr int kBias = 8;
constexpr float kSmallestScale = 1e-5f;

}  // namespace

double quantize_int4_row(std::span<const float> row, std::int32_t* words, bf16* scales) {
  COPPICE_CHECK_EQ(row.size() % kInt4GroupSize, 0u);
  double squared_error = 0;
  for (std::size_t group = 0; group < row.size() / kInt4GroupSize; ++group) {
    const auto weights = row.subspan(group * kInt4GroupSize, kInt4GroupSize);
    float largest = 0;
    for (const float weight : weights) largest = std::max(largest, std::abs(weight));
    scales[group] = to_bf16(std::max(largest / static_cast<float>(kLargest), kSmallestScale));
    const float scale = to_float(scales[group]);
    for (std::size_t word = 0; word < kInt4GroupSize / kInt4PerWord; ++word) {
      std::uint32_t packed = 0;
      for (std::size_t i = 0; i < kInt4PerWord; ++i) {
        const float weight = weights[word * kInt4PerWord + i];
        // At most 7 in magnitude: rounding to bf16 lowers the scale by less than 2^-8.
        const int q = static_cast<int>(std::lrint(weight / scale));
        packed |= static_cast<std::uint32_t>(q + kBias) << (4 * i);
        const double error = static_cast<double>(weight) - static_cast<double>(q) * scale;
        squared_error += error * error;
      }
      *words++ = static_cast<std::int32_t>(packed);
    }
  }
  return squared_error;
}

}  // namespace coppice
