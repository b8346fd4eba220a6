// The CPU backend: the oracle for every other backend, and the default without a GPU. Runs
// synchronously; activations and cache are fp32.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/device_meter.h"
#include "base/thread_pool.h"
#include "comm/communicator.h"

namespace coppice {

enum class CpuPath {
  kReference,  // readable fp32 loops
  kFast,       // the best instruction set this machine has; kReference where it has none
  kAvx2,       // AVX2 with FMA and F16C
  kAvx512,     // AVX-512 F, BW, DQ, VL and VNNI
};

// num_threads 0: all CPUs this process may use. communicator: of this rank, outlives the backend;
// null: one rank. Throws Error(kUnsupported) when the machine lacks the instructions of the path.
std::unique_ptr<Backend> make_cpu_backend(CpuPath path, int num_threads,
                                          Communicator* communicator = nullptr);

// `backend` is one of the above.
std::unique_ptr<DeviceMeter> make_cpu_meter(Backend& backend, int num_threads);

}  // namespace coppice
