#include "backend/cuda/cuda_memory.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/peer_memory.h"
#include "base/error.h"

namespace coppice {

Buffer allocate_device(std::size_t num_bytes, cudaStream_t stream) {
  void* data = nullptr;
  if (cudaMalloc(&data, std::max<std::size_t>(num_bytes, 1)) != cudaSuccess) {
    cudaGetLastError();
    std::size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    throw Error(ErrorKind::kOutOfMemory, "cuda: cannot allocate " + std::to_string(num_bytes) +
                                             " bytes: " + std::to_string(free_bytes) + " of " +
                                             std::to_string(total_bytes) + " are free");
  }
  Buffer buffer(data, num_bytes, Device::kCuda, [](void* pointer) { cudaFree(pointer); });
  cuda_check(cudaMemsetAsync(data, 0, num_bytes, stream), "clear memory");
  return buffer;
}

Buffer allocate_pinned(std::size_t num_bytes) {
  void* data = nullptr;
  cuda_check(cudaMallocHost(&data, std::max<std::size_t>(num_bytes, 1)), "page-locked memory");
  std::memset(data, 0, num_bytes);
  return Buffer(data, num_bytes, Device::kCpu, [](void* pointer) { cudaFreeHost(pointer); });
}

CudaTickets::CudaTickets(std::int64_t count) : events_(static_cast<std::size_t>(count)) {
  for (cudaEvent_t& event : events_)
    cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create event");
}

CudaTickets::~CudaTickets() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

std::int64_t CudaTickets::mark(cudaStream_t stream) {
  const std::int64_t ticket = next_++;
  cuda_check(cudaEventRecord(event_of(ticket), stream), "record event");
  return ticket;
}

cudaEvent_t CudaTickets::event_of(std::int64_t ticket) const {
  COPPICE_CHECK(ticket < next_ && ticket + std::ssize(events_) >= next_, ticket, " of ", next_);
  return events_[static_cast<std::size_t>(ticket) % events_.size()];
}

void* CudaWorkspace::get(std::size_t num_bytes) {
  if (areas_.empty() || areas_.back().num_bytes() < num_bytes) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda_check(cudaStreamIsCapturing(stream_, &status), "capture status");
    COPPICE_CHECK(status == cudaStreamCaptureStatusNone, "workspace of ", num_bytes,
                  " bytes first asked for during capture");
    const std::size_t grown = areas_.empty() ? num_bytes : 2 * areas_.back().num_bytes();
    if (peers_ != nullptr) peers_->settle(stream_);
    areas_.push_back(allocate_device(std::max(num_bytes, grown), stream_));
    if (peers_ != nullptr) peers_->settle(stream_);
  }
  return areas_.back().data();
}

}  // namespace coppice
