// Position in a ring of shared-memory slots and the barrier parity that goes with it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

struct RingIndex {
  int index = 0;
  uint32_t parity = 0;

  __device__ void advance(int size) {
    if (++index == size) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace coppice::kernels
