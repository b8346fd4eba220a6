// The one place that knows which backends this build has.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/device_meter.h"
#include "backend/expert_repacker.h"
#include "comm/communicator.h"

namespace coppice {

struct BackendOptions {
  // "auto", "cpu", "cpu-reference", "cpu-avx2", "cpu-avx512", "cuda" or "cuda:N". With several
  // ranks "auto" and "cuda" give each the GPU of its number.
  std::string device = "auto";
  int num_threads = 0;                   // CPU threads; 0: all that this process may use
  Communicator* communicator = nullptr;  // of this tensor-parallel rank; null: one rank
};

// Whether the machine has a device for each of so many ranks: to be called once, before the first
// of their backends is made. Throws Error in one line when GPUs are asked for and are too few.
void check_rank_devices(const std::string& device, std::int64_t num_ranks);

// The communicator outlives the backend. Throws Error(kUnsupported) with the cause when the device
// is absent or not built in.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

// For the backends of `device`, "cuda" alone so far, on any machine. num_threads 0: all.
ExpertRepacker make_expert_repacker(const std::string& device, int num_threads = 0);

// For a backend that make_backend gave, which must outlive it.
std::unique_ptr<DeviceMeter> make_device_meter(Backend& backend, const BackendOptions& options);

}  // namespace coppice
