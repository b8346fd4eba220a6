// Scratch memory of the CPU backend: grows to the largest step seen, then never allocates again.
#pragma once

#include <cstdint>

#include "tensor/buffer.h"

namespace coppice::cpu {

class Workspace {
 public:
  // At least `count` elements, 64-byte aligned; the previous contents are gone.
  template <typename T>
  T* get(std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > buffer_.num_bytes()) buffer_ = Buffer::host(bytes + bytes / 2);
    return static_cast<T*>(buffer_.data());
  }

 private:
  Buffer buffer_;
};

}  // namespace coppice::cpu
