#include "io/tensor_info.h"

#include "base/check.h"

namespace coppice {
namespace {

// In the order of StorageType.
constexpr StorageTraits kTraits[] = {
    {StorageType::kF32, "F32", 1, 32, DType::kF32},
    {StorageType::kF16, "F16", 1, 16, DType::kF16},
    {StorageType::kBF16, "BF16", 1, 16, DType::kBF16},
    {StorageType::kF8E4M3, "F8_E4M3", 1, 8, DType::kF8E4M3},
    {StorageType::kI64, "I64", 1, 64, DType::kI64},
    {StorageType::kI32, "I32", 1, 32, DType::kI32},
    {StorageType::kI8, "I8", 1, 8, DType::kI8},
    {StorageType::kU8, "U8", 1, 8, DType::kU8},
    {StorageType::kBool, "BOOL", 1, 8, DType::kBool},
    {StorageType::kF64, "F64", 1, 64, std::nullopt},
    {StorageType::kU64, "U64", 1, 64, std::nullopt},
    {StorageType::kU32, "U32", 1, 32, std::nullopt},
    {StorageType::kU16, "U16", 1, 16, std::nullopt},
    {StorageType::kI16, "I16", 1, 16, std::nullopt},
    {StorageType::kC64, "C64", 1, 64, std::nullopt},
    {StorageType::kF8E5M2, "F8_E5M2", 1, 8, std::nullopt},
    {StorageType::kF8E8M0, "F8_E8M0", 1, 8, std::nullopt},
    {StorageType::kF6E2M3, "F6_E2M3", 1, 6, std::nullopt},
    {StorageType::kF6E3M2, "F6_E3M2", 1, 6, std::nullopt},
    {StorageType::kF4, "F4", 1, 4, std::nullopt},
    {StorageType::kQ4_0, "Q4_0", 32, 144, std::nullopt},
    {StorageType::kQ4_1, "Q4_1", 32, 160, std::nullopt},
    {StorageType::kQ8_0, "Q8_0", 32, 272, std::nullopt},
};

}  // namespace

const StorageTraits& traits_of(StorageType type) {
  const StorageTraits& traits = kTraits[static_cast<std::size_t>(type)];
  COPPICE_CHECK(traits.type == type, traits.name);
  return traits;
}

StorageType storage_of(DType dtype) {
  for (const StorageTraits& traits : kTraits)
    if (traits.dtype == dtype) return traits.type;
  COPPICE_CHECK(false, "no stored type for ", name_of(dtype));
  return StorageType::kF32;
}

std::optional<StorageType> safetensors_type(std::string_view name) {
  for (const StorageTraits& traits : kTraits)
    if (traits.block_elements == 1 && traits.name == name) return traits.type;
  return std::nullopt;
}

std::int64_t TensorInfo::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::string TensorInfo::describe() const {
  std::string text = name_of(type);
  text += '[';
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    text += (dim > 0 ? ", " : "") + std::to_string(shape[dim]);
  return text + ']';
}

std::optional<std::uint64_t> storage_bytes(StorageType type,
                                           const std::vector<std::int64_t>& shape) {
  const StorageTraits& traits = traits_of(type);
  const std::int64_t inner = shape.empty() ? 1 : shape.back();
  if (inner % traits.block_elements != 0) return std::nullopt;
  // Bits grow at least as fast as elements: num_elements() cannot overflow where this does not.
  std::int64_t bits = traits.block_bits;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const std::int64_t size = shape[dim];
    const std::int64_t blocks = dim + 1 == shape.size() ? size / traits.block_elements : size;
    if (size < 0 || __builtin_mul_overflow(bits, blocks, &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return static_cast<std::uint64_t>(bits / 8);
}

}  // namespace coppice
