// Stands in for the CUDA backend in builds without the toolkit.
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace coppice {

int num_cuda_devices() {
  return 0;
}

void load_cuda_kernels_early() {}

std::unique_ptr<Backend> make_cuda_backend(int device_index, Communicator*) {
  throw Error(ErrorKind::kUnsupported, "device 'cuda:" + std::to_string(device_index) +
                                           "': this build has no CUDA (configure with "
                                           "-DCOPPICE_CUDA=ON)");
}

std::unique_ptr<DeviceMeter> make_cuda_meter(Backend&) {
  throw Error(ErrorKind::kUnsupported, "this build has no CUDA");
}

}  // namespace coppice
