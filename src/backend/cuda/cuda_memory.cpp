#include "backend/cuda/cuda_memory.h"

#include <algorithm>
#include <string>

#include "backend/cuda/cuda_check.h"
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

void* CudaWorkspace::get(std::size_t num_bytes) {
  if (areas_.empty() || areas_.back().num_bytes() < num_bytes) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda_check(cudaStreamIsCapturing(stream_, &status), "capture status");
    COPPICE_CHECK(status == cudaStreamCaptureStatusNone, "workspace of ", num_bytes,
                  " bytes first asked for during capture");
    const std::size_t grown = areas_.empty() ? num_bytes : 2 * areas_.back().num_bytes();
    areas_.push_back(allocate_device(std::max(num_bytes, grown), stream_));
  }
  return areas_.back().data();
}

}  // namespace coppice
