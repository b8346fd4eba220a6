// Device memory of the CUDA backend: owned allocations, the workspace of kernels, and staged
// copies.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/buffer.h"

namespace coppice {

// Zero-filled; throws Error(kOutOfMemory) with the bytes asked for and free.
Buffer allocate_device(std::size_t num_bytes, cudaStream_t stream);

// Page-locked host memory, zero-filled: copies to it do not hold up the caller.
Buffer allocate_pinned(std::size_t num_bytes);

class PeerMemory;

// Numbered points of a stream that the host may wait for.
class CudaTickets {
 public:
  explicit CudaTickets(std::int64_t count);
  ~CudaTickets();
  CudaTickets(const CudaTickets&) = delete;
  CudaTickets& operator=(const CudaTickets&) = delete;

  std::int64_t mark(cudaStream_t stream);
  // Only of the last `count` marks.
  cudaEvent_t event_of(std::int64_t ticket) const;

 private:
  std::vector<cudaEvent_t> events_;
  std::int64_t next_ = 0;
};

// Scratch memory shared by all kernels of one stream. Grows only while rounds run eagerly; earlier
// areas stay allocated, because graphs captured with them keep their addresses. New areas are
// zero-filled. With several ranks all grow at the same op, when no rank has work under way.
class CudaWorkspace {
 public:
  // peers: of several ranks; null: one. Outlives it.
  CudaWorkspace(cudaStream_t stream, PeerMemory* peers) : stream_(stream), peers_(peers) {}
  void* get(std::size_t num_bytes);

 private:
  cudaStream_t stream_;
  PeerMemory* peers_;
  std::vector<Buffer> areas_;
};

}  // namespace coppice
