// The CUDA backend: one GPU of this machine.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace coppice {

// device_index as the CUDA driver counts them. Throws Error(kUnsupported) with the cause when this
// build has no CUDA or the machine has no such device.
std::unique_ptr<Backend> make_cuda_backend(int device_index);

}  // namespace coppice
