// Owner of one allocation, on the host or on a device. Move-only; frees in the destructor.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "tensor/tensor.h"

namespace coppice {

class Buffer {
 public:
  using Deleter = std::function<void(void*)>;

  Buffer() = default;
  // Takes ownership of `data`; `deleter` frees it.
  Buffer(void* data, std::size_t num_bytes, Device device, Deleter deleter);

  // 64-byte aligned, zero-filled host memory (huge pages are advised from 4 MiB on; from
  // 64 MiB on pages take memory when they are first touched).
  static Buffer host(std::size_t num_bytes);

  void* data() const { return data_.get(); }
  std::size_t num_bytes() const { return num_bytes_; }
  Device device() const { return device_; }

  // A dense tensor at `offset_bytes` into the buffer; checks that it fits.
  Tensor tensor(DType dtype, std::initializer_list<std::int64_t> shape,
                std::size_t offset_bytes = 0) const;

 private:
  std::unique_ptr<void, Deleter> data_{nullptr, [](void*) {}};
  std::size_t num_bytes_ = 0;
  Device device_ = Device::kCpu;
};

}  // namespace coppice
