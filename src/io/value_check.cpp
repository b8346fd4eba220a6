#include "io/value_check.h"

#include <cmath>
#include <cstring>

#include "base/half.h"

namespace coppice {
namespace {

// Element `i` of a tensor as a float, without asking for alignment.
template <typename T>
T load(std::span<const std::byte> bytes, std::uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

float element(StorageType type, std::span<const std::byte> bytes, std::uint64_t i) {
  switch (type) {
    case StorageType::kF32:
      return load<float>(bytes, i * 4);
    case StorageType::kF16:
      return to_float(load<f16>(bytes, i * 2));
    case StorageType::kBF16:
      return to_float(load<bf16>(bytes, i * 2));
    case StorageType::kF8E4M3:
      return f8e4m3_to_float(load<std::uint8_t>(bytes, i));
    case StorageType::kQ4_0:
      return to_float(load<f16>(bytes, i * 18));
    case StorageType::kQ8_0:
      return to_float(load<f16>(bytes, i * 34));
    case StorageType::kQ4_1: {
      const float minimum = to_float(load<f16>(bytes, i * 20 + 2));
      return std::isfinite(minimum) ? to_float(load<f16>(bytes, i * 20)) : minimum;
    }
    default:
      return 0;
  }
}

// "element [3, 17]", or the block's number for block formats.
std::string position(const TensorInfo& info, std::uint64_t i) {
  if (traits_of(info.type).block_elements > 1) return "block " + std::to_string(i);
  std::string text;
  for (std::size_t dim = info.shape.size(); dim-- > 0;) {
    const auto size = static_cast<std::uint64_t>(info.shape[dim]);
    text = std::to_string(i % size) + (text.empty() ? "" : ", ") + text;
    i /= size;
  }
  return "element [" + text + "]";
}

void check_scale_rows(const Checkpoint& checkpoint, const TensorInfo& info) {
  const std::span<const std::byte> bytes = checkpoint.bytes(info);
  const auto columns = static_cast<std::uint64_t>(info.shape.empty() ? 1 : info.shape.back());
  const auto count = static_cast<std::uint64_t>(info.num_elements());
  bool row_is_zero = true;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = element(info.type, bytes, i);
    if (value < 0) checkpoint.fail(info, position(info, i) + " is negative, which no scale is");
    row_is_zero = row_is_zero && value == 0;
    if ((i + 1) % columns != 0) continue;
    if (row_is_zero)
      checkpoint.fail(info, "row " + std::to_string(i / columns) + " is zero: never filled?");
    row_is_zero = true;
  }
}

bool is_floating(StorageType type) {
  switch (type) {
    case StorageType::kF32:
    case StorageType::kF16:
    case StorageType::kBF16:
    case StorageType::kF8E4M3:
    case StorageType::kQ4_0:
    case StorageType::kQ4_1:
    case StorageType::kQ8_0:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check_values(const Checkpoint& checkpoint, const TensorInfo& info) {
  if (!is_floating(info.type)) return;
  const std::span<const std::byte> bytes = checkpoint.bytes(info);
  const auto block_bytes = static_cast<std::uint64_t>(traits_of(info.type).block_bits / 8);
  for (std::uint64_t i = 0; i < info.num_bytes / block_bytes; ++i) {
    const float value = element(info.type, bytes, i);
    if (std::isfinite(value)) [[likely]]
      continue;
    checkpoint.fail(info, position(info, i) + (std::isnan(value) ? " is nan" : " is infinite"));
  }
  if (info.name.ends_with(".weight_scale")) check_scale_rows(checkpoint, info);
  checkpoint.dont_need(info);
}

}  // namespace coppice
