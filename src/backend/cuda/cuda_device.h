// The GPU a backend runs on: found, checked against the toolkit, described.
#pragma once

#include <cstddef>
#include <string>

namespace coppice {

struct CudaDevice {
  int index = 0;
  std::string name;            // "NVIDIA H200"
  int compute_capability = 0;  // 90
  int num_sms = 0;
  std::size_t total_bytes = 0;
};

// Makes the device current for this thread. Throws Error(kUnsupported) with one line when there is
// no driver, no such device, or a driver older than the toolkit of this build (both versions
// named).
CudaDevice open_cuda_device(int index);

}  // namespace coppice
