// How a tensor lies in a checkpoint file: name, stored type, shape and byte range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace coppice {

// Element types and block formats found in checkpoints. The first nine are DTypes; the others can
// be listed and copied as bytes, the blocks also computed with (see backend/op_args.h).
enum class StorageType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kI64,
  kI32,
  kI8,
  kU8,
  kBool,
  // safetensors only
  kF64,
  kU64,
  kU32,
  kU16,
  kI16,
  kC64,
  kF8E5M2,
  kF8E8M0,
  kF6E2M3,
  kF6E3M2,
  kF4,
  // GGUF blocks, described by the elements and bytes of one block along the last dimension
  kQ4_0,  // 32: f16 d, 16 bytes of nibbles (i and i + 16 share a byte): (q - 8) d
  kQ4_1,  // 32: f16 d, f16 m, 16 bytes of nibbles: q d + m
  kQ8_0,  // 32: f16 d, 32 int8: q d
};

struct StorageTraits {
  StorageType type;
  const char* name;             // as safetensors or GGUF spell it
  std::int64_t block_elements;  // 1 for element types
  std::int64_t block_bits;      // bits of one block
  std::optional<DType> dtype;   // for types a Tensor can have
};
const StorageTraits& traits_of(StorageType type);
inline const char* name_of(StorageType type) {
  return traits_of(type).name;
}
// The stored type of a DType.
StorageType storage_of(DType dtype);

// The type safetensors spells `name`; nothing for names it does not define.
std::optional<StorageType> safetensors_type(std::string_view name);

struct TensorInfo {
  std::string name;
  StorageType type = StorageType::kF32;
  std::vector<std::int64_t> shape;  // outermost dimension first; [] is a scalar
  std::uint32_t file = 0;           // index into the checkpoint's files
  std::uint64_t offset = 0;         // bytes from the start of that file
  std::uint64_t num_bytes = 0;

  std::int64_t num_elements() const;  // 1 for a scalar; the readers have checked for overflow
  std::string describe() const;       // "BF16[17, 384]"
};

// Bytes of a tensor of this type and shape; nothing when a dimension is negative, the product
// overflows 63 bits, or the elements do not fill whole blocks (whole bytes for sub-byte types).
std::optional<std::uint64_t> storage_bytes(StorageType type,
                                           const std::vector<std::int64_t>& shape);

}  // namespace coppice
