// Programmatic dependent launch: a kernel may start while its predecessor still runs (sm_90 and
// later; before that launches are plain and these do nothing).
#pragma once

#include <cuda_runtime.h>

namespace coppice::kernels {

// Blocks until the kernels this one depends on have finished and their writes are visible. Returns
// at once when the kernel was launched without the attribute.
__device__ inline void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets kernels that depend on this one be scheduled; says nothing about this one's writes.
__device__ inline void grid_dependency_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace coppice::kernels
