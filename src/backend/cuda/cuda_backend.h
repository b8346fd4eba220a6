// The CUDA backend: one GPU of this machine.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/device_meter.h"

namespace coppice {

// device_index as the CUDA driver counts them. Throws Error(kUnsupported) with the cause when this
// build has no CUDA or the machine has no such device.
std::unique_ptr<Backend> make_cuda_backend(int device_index);

// `backend` is one of the above.
std::unique_ptr<DeviceMeter> make_cuda_meter(Backend& backend);

}  // namespace coppice
