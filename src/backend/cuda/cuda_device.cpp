#include "backend/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include "backend/cuda/cuda_check.h"
#include "base/error.h"

namespace coppice {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

[[noreturn]] void refuse(const std::string& cause) {
  throw Error(ErrorKind::kUnsupported, "cuda: " + cause);
}

}  // namespace

CudaDevice open_cuda_device(int index) {
  int driver = 0, runtime = 0, count = 0;
  cuda_check(cudaRuntimeGetVersion(&runtime), "runtime version");
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    refuse("no NVIDIA driver is installed on this machine");
  // Within one major version any driver runs any toolkit's code (minor version compatibility).
  if (driver / 1000 < runtime / 1000)
    refuse("the driver supports CUDA " + version_text(driver) + ", this build needs " +
           version_text(runtime) + " or newer");
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) refuse("no GPU is visible");
  if (index >= count)
    refuse("device " + std::to_string(index) + " of " + std::to_string(count) + " does not exist");
  cudaDeviceProp properties{};
  cuda_check(cudaSetDevice(index), "set device");
  cuda_check(cudaGetDeviceProperties(&properties, index), "device properties");
  return {.index = index,
          .name = properties.name,
          .compute_capability = properties.major * 10 + properties.minor,
          .num_sms = properties.multiProcessorCount,
          .total_bytes = properties.totalGlobalMem};
}

}  // namespace coppice
