// YaRN (arXiv 2309.00071) and Llama 3 frequency scaling.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "model/model_config.h"

namespace coppice {
namespace {

// YaRN's m(scale, k): how much the attention temperature drops for a longer context.
double yarn_mscale(double scale, double k) {
  return scale <= 1 ? 1.0 : 0.1 * k * std::log(scale) + 1.0;
}

// The pair whose wavelength makes `rotations` turns within the original context.
double correction_pair(const RopeConfig& rope, double dim, double rotations) {
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  return dim * std::log(length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
}

// Fast pairs keep their frequency, slow pairs are divided by the factor, with a ramp between.
void scale_yarn(const RopeConfig& rope, std::vector<double>& frequencies) {
  const double dim = static_cast<double>(2 * frequencies.size());
  const double low = std::max(std::floor(correction_pair(rope, dim, rope.beta_fast)), 0.0);
  double high = std::min(std::ceil(correction_pair(rope, dim, rope.beta_slow)), dim - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1 - ramp);
  }
}

void scale_llama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  for (double& frequency : frequencies) {
    const double turns = length * frequency / (2 * std::numbers::pi);
    const double kept = std::clamp(
        (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    frequency = (1 - kept) * frequency / rope.factor + kept * frequency;
  }
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t dim) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < dim / 2; ++i)
    frequencies.push_back(
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
  if (rope.type == RopeType::kYarn) scale_yarn(rope, frequencies);
  if (rope.type == RopeType::kLlama3) scale_llama3(rope, frequencies);
  if (!rope.frequency_divisors.empty()) {
    COPPICE_CHECK_EQ(rope.frequency_divisors.size(), frequencies.size());
    for (std::size_t i = 0; i < frequencies.size(); ++i)
      frequencies[i] /= double{rope.frequency_divisors[i]};
  }
  return frequencies;
}

double rope_amplitude(const RopeConfig& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.type != RopeType::kYarn) return 1;
  return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
}

std::vector<float> rope_table(const RopeConfig& rope, std::int64_t dim,
                              std::int64_t num_positions) {
  const std::vector<double> frequencies = rope_frequencies(rope, dim);
  const double amplitude = rope_amplitude(rope);
  const auto half = static_cast<std::size_t>(dim / 2);
  std::vector<float> table(static_cast<std::size_t>(num_positions) * 2 * half);
  for (std::int64_t position = 0; position < num_positions; ++position) {
    float* row = table.data() + static_cast<std::size_t>(position) * 2 * half;
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * static_cast<float>(frequencies[i]);
      row[i] = static_cast<float>(std::cos(double{angle}) * amplitude);
      row[half + i] = static_cast<float>(std::sin(double{angle}) * amplitude);
    }
  }
  return table;
}

double ModelConfig::softmax_scale() const {
  if (architecture == Architecture::kLlama) return 1 / std::sqrt(static_cast<double>(head_dim));
  // In the absorbed form too the scale follows from the expanded head.
  const double base = 1 / std::sqrt(static_cast<double>(qk_nope_head_dim + qk_rope_head_dim));
  if (rope.type != RopeType::kYarn) return base;
  const double m = yarn_mscale(rope.factor, rope.mscale_all_dim);
  return base * m * m;
}

}  // namespace coppice
