#include "backend/cuda/cuda_check.h"

#include <string>

#include "base/error.h"

namespace coppice {

void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorNoKernelImageForDevice) {
    int device = 0, major = 0, minor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    throw Error(ErrorKind::kUnsupported, std::string("cuda: ") + what + " is not built for sm_" +
                                             std::to_string(10 * major + minor) +
                                             " (docs/architecture.md lists what is)");
  }
  const ErrorKind kind = status == cudaErrorMemoryAllocation ? ErrorKind::kOutOfMemory
                         : status == cudaErrorInvalidValue   ? ErrorKind::kUnsupported
                                                             : ErrorKind::kUnavailable;
  throw Error(kind, std::string("cuda: ") + what + ": " + cudaGetErrorString(status));
}

}  // namespace coppice
