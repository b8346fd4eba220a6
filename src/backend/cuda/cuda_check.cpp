#include "backend/cuda/cuda_check.h"

#include <string>

#include "base/error.h"

namespace coppice {

void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const ErrorKind kind = status == cudaErrorMemoryAllocation ? ErrorKind::kOutOfMemory
                         : status == cudaErrorInvalidValue   ? ErrorKind::kUnsupported
                                                             : ErrorKind::kUnavailable;
  throw Error(kind, std::string("cuda: ") + what + ": " + cudaGetErrorString(status));
}

}  // namespace coppice
