// The device's own clock, written in stream order: when a stage of a captured round began.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// *out = nanoseconds since the device's epoch. Enqueues on `stream`; capturable.
cudaError_t write_time(std::int64_t* out, cudaStream_t stream);

}  // namespace coppice::kernels
