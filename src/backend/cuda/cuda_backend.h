// The CUDA backend: one GPU of this machine.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/device_meter.h"
#include "backend/expert_repacker.h"
#include "comm/communicator.h"

namespace coppice {

// GPUs of this machine; 0 as well where the driver does not fit this build.
int num_cuda_devices();

// To be called before anything else of CUDA where ranks are GPUs: kernels are then loaded at the
// start. At its first launch, as is usual, a kernel could hold up the driver while it waits for a
// peer's that the driver then cannot launch.
void load_cuda_kernels_early();

// device_index as the CUDA driver counts them. communicator: of this tensor-parallel rank; null:
// one rank. Throws Error(kUnsupported) with the cause when this build has no CUDA or the machine
// has no such device.
std::unique_ptr<Backend> make_cuda_backend(int device_index, Communicator* communicator = nullptr);

// `backend` is one of the above.
std::unique_ptr<DeviceMeter> make_cuda_meter(Backend& backend);

// Needs no GPU and is in every build. Takes INT4 group 32. num_threads 0: all.
ExpertRepacker make_cuda_repacker(int num_threads = 0);

}  // namespace coppice
