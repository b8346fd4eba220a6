#include "model/random_source.h"

#include <cmath>
#include <cstring>

#include "base/rng.h"

namespace coppice {
namespace {

bool is_routed_expert(const std::string& name) {
  return name.find(".experts.") != std::string::npos;
}

// FNV-1a, so that a tensor's values follow from its name alone.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// A stream of random words for one tensor.
class Words {
 public:
  Words(std::uint64_t seed, const std::string& name) : key_(seed ^ hash_of(name)) {}

  std::uint32_t next() {
    if (used_ == block_.size()) {
      block_ = philox4x32({counter_, 0, 0, 0}, key_);
      ++counter_;
      used_ = 0;
    }
    return block_[used_++];
  }

 private:
  std::uint64_t key_;
  std::uint32_t counter_ = 0;
  PhiloxCounter block_{};
  std::size_t used_ = block_.size();
};

// 16 random bits to a float in (-1, 1).
float symmetric(std::uint32_t bits) {
  return (static_cast<float>(bits & 0xffffu) + 0.5f) * 0x1p-15f - 1.0f;
}

}  // namespace

std::size_t RandomSource::check(const WeightSpec& spec) {
  if (spec.cols == 0) return static_cast<std::size_t>(spec.rows) * sizeof(float);
  const WeightFormat format =
      is_routed_expert(spec.name) ? WeightFormat::kInt4Group32 : WeightFormat::kBF16;
  return num_bytes(HostMatrix{.format = format, .rows = spec.rows, .cols = spec.cols});
}

HostMatrix RandomSource::matrix(const WeightSpec& spec) {
  return is_routed_expert(spec.name) ? int4_matrix(spec) : bf16_matrix(spec);
}

HostMatrix RandomSource::bf16_matrix(const WeightSpec& spec) {
  Words words(seed_, spec.name);
  const auto count = static_cast<std::size_t>(spec.rows * spec.cols);
  auto* values = reinterpret_cast<bf16*>(storage_.allocate(count * sizeof(bf16)));
  const float amplitude = std::sqrt(3.0f / static_cast<float>(spec.cols));
  for (std::size_t i = 0; i < count; i += 2) {
    const std::uint32_t word = words.next();
    values[i] = to_bf16(symmetric(word) * amplitude);
    if (i + 1 < count) values[i + 1] = to_bf16(symmetric(word >> 16) * amplitude);
  }
  return {.format = WeightFormat::kBF16, .rows = spec.rows, .cols = spec.cols, .data = values};
}

HostMatrix RandomSource::int4_matrix(const WeightSpec& spec) {
  COPPICE_CHECK_EQ(spec.cols % 32, 0);
  Words words(seed_, spec.name);
  const auto num_words = static_cast<std::size_t>(spec.rows * spec.cols / 8);
  const auto num_groups = static_cast<std::size_t>(spec.rows * spec.cols / 32);
  auto* packed = reinterpret_cast<std::uint32_t*>(storage_.allocate(num_words * 4));
  auto* scales = reinterpret_cast<bf16*>(storage_.allocate(num_groups * sizeof(bf16)));
  for (std::size_t i = 0; i < num_words; ++i) {
    const std::uint32_t word = words.next();
    // Nibble 0 (value -8) becomes 8 (value 0): the values lie in [-7, 7] as in trained files.
    std::uint32_t fixed = word;
    for (int shift = 0; shift < 32; shift += 4)
      if (((word >> shift) & 15u) == 0) fixed |= 8u << shift;
    packed[i] = fixed;
  }
  constexpr float kSpread = 4.3f;  // standard deviation of the integers
  const float typical = 1.0f / (kSpread * std::sqrt(static_cast<float>(spec.cols)));
  for (std::size_t i = 0; i < num_groups; ++i)
    scales[i] = to_bf16(typical * (1.0f + 0.25f * symmetric(words.next())));
  return {.format = WeightFormat::kInt4Group32,
          .rows = spec.rows,
          .cols = spec.cols,
          .data = packed,
          .scales = scales};
}

// Norm weights lie around 1, selection biases around 0.
std::vector<float> RandomSource::vector(const WeightSpec& spec) {
  Words words(seed_, spec.name);
  const bool is_bias = spec.name.ends_with("bias");
  std::vector<float> values(static_cast<std::size_t>(spec.rows));
  for (float& value : values)
    value = is_bias ? 0.05f * symmetric(words.next()) : 1.0f + 0.1f * symmetric(words.next());
  return values;
}

}  // namespace coppice
