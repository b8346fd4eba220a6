// Element types of tensors. Block-quantised weight formats are not element types: see
// backend/op_args.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice {

enum class DType : std::uint8_t { kF32, kF16, kBF16, kF8E4M3, kI64, kI32, kI8, kU8, kBool };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI8:
      return "I8";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  return "?";
}

}  // namespace coppice
