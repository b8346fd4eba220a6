// A bump allocator over one Buffer for activations. All maximum sizes are known before the first
// graph is captured, so an arena never grows; running out is a programmer mistake.
#pragma once

#include "tensor/buffer.h"

namespace coppice {

class Arena {
 public:
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}

  Tensor allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
    const Tensor view = buffer_.tensor(dtype, shape, used_);
    used_ += padded(static_cast<std::size_t>(view.num_bytes()));
    return view;
  }

  // What an allocation of this size takes.
  static constexpr std::size_t padded(std::size_t num_bytes) {
    constexpr std::size_t kAlignment = 256;
    return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  Buffer buffer_;
  std::size_t used_ = 0;
};

}  // namespace coppice
