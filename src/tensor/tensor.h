// A view of memory: pointer, element type, shape and row stride. Never owns (tensor/buffer.h does),
// trivially copyable.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "base/dtype.h"
#include "base/half.h"

namespace coppice {

// Where a pointer may be dereferenced.
enum class Device : std::uint8_t { kCpu, kCuda };

namespace detail {
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};
}  // namespace detail

// Up to four dimensions, row-major. Only the outermost dimension may have gaps: element (i,
// rest...) of a tensor lies row_stride * i elements after element (0, rest...); the inner
// dimensions are dense.
class Tensor {
 public:
  static constexpr int kMaxDims = 4;

  Tensor() = default;
  Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
         Device device = Device::kCpu);

  // True for a default-constructed tensor: the value of an absent optional argument.
  bool empty() const { return data_ == nullptr; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  int ndim() const { return ndim_; }
  std::int64_t shape(int dim) const {
    COPPICE_CHECK_LT(static_cast<unsigned>(dim), static_cast<unsigned>(ndim_));
    return shape_[static_cast<std::size_t>(dim)];
  }
  std::int64_t row_stride() const { return row_stride_; }  // elements
  std::int64_t row_size() const;                           // elements of one row
  std::int64_t num_elements() const;
  std::int64_t num_bytes() const;  // dense tensors only
  bool is_dense() const { return ndim_ == 0 || row_stride_ == row_size(); }

  void* raw() const { return data_; }
  template <typename T>
  T* data() const {
    COPPICE_CHECK(dtype_ == detail::DTypeOf<T>::value, "tensor is ", name_of(dtype_), ", asked as ",
                  name_of(detail::DTypeOf<T>::value));
    return static_cast<T*>(data_);
  }
  // Pointer to row i of the outermost dimension.
  template <typename T>
  T* row(std::int64_t i) const {
    return data<T>() + i * row_stride_;
  }

  // Rows [begin, begin + count) of the outermost dimension.
  Tensor rows(std::int64_t begin, std::int64_t count) const;
  // Columns [begin, begin + count) of a two-dimensional tensor; keeps the row stride.
  Tensor columns(std::int64_t begin, std::int64_t count) const;
  // The same elements under another shape; a tensor with gaps may only reshape its inner
  // dimensions.
  Tensor reshape(std::initializer_list<std::int64_t> shape) const;

  // "BF16[17, 384]", for messages.
  std::string describe() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Device device_ = Device::kCpu;
  int ndim_ = 0;
  std::array<std::int64_t, kMaxDims> shape_{};
  std::int64_t row_stride_ = 0;
};

}  // namespace coppice
