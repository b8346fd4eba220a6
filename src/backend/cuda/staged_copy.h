// Copies from mapped files to the device through page-locked buffers in turn: while one is on its
// way, threads fill the next, so that reading pages from disk and copying go on at the same time.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>

#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace coppice {

class StagedCopy {
 public:
  explicit StagedCopy(cudaStream_t stream);
  ~StagedCopy();
  StagedCopy(const StagedCopy&) = delete;
  StagedCopy& operator=(const StagedCopy&) = delete;

  cudaStream_t stream() const { return stream_; }
  // Enqueues the copy; `src` may be reused at return.
  void copy(void* dst, const void* src, std::size_t num_bytes);

 private:
  struct Stage {
    Buffer buffer;
    cudaEvent_t copied = nullptr;
  };

  cudaStream_t stream_;
  std::array<Stage, 4> stages_;
  std::size_t next_ = 0;
  ThreadPool threads_;
};

}  // namespace coppice
