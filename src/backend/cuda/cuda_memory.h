// Device memory of the CUDA backend: owned allocations, the workspace of kernels, and staged
// copies.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "tensor/buffer.h"

namespace coppice {

// Zero-filled; throws Error(kOutOfMemory) with the bytes asked for and free.
Buffer allocate_device(std::size_t num_bytes, cudaStream_t stream);

// Scratch memory shared by all kernels of one stream. Grows only while rounds run eagerly; earlier
// areas stay allocated, because graphs captured with them keep their addresses. New areas are
// zero-filled.
class CudaWorkspace {
 public:
  explicit CudaWorkspace(cudaStream_t stream) : stream_(stream) {}
  void* get(std::size_t num_bytes);

 private:
  cudaStream_t stream_;
  std::vector<Buffer> areas_;
};

}  // namespace coppice
