// The CUDA backend: one GPU of this machine.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/device_meter.h"
#include "comm/communicator.h"

namespace coppice {

// Whether there is a driver that this build can use, and a GPU.
bool has_cuda();

// device_index as the CUDA driver counts them. communicator: of this tensor-parallel rank; null:
// one rank. Throws Error(kUnsupported) with the cause when this build has no CUDA or the machine
// has no such device.
std::unique_ptr<Backend> make_cuda_backend(int device_index, Communicator* communicator = nullptr);

// `backend` is one of the above.
std::unique_ptr<DeviceMeter> make_cuda_meter(Backend& backend);

}  // namespace coppice
