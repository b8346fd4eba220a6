// Turns CUDA return codes into one-line errors.
#pragma once

#include <cuda_runtime.h>

namespace coppice {

// Throws Error(kUnavailable, "cuda: WHAT: cause") unless status is success; kOutOfMemory for failed
// allocations.
void cuda_check(cudaError_t status, const char* what);

}  // namespace coppice
