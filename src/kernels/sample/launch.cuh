// Launching small kernels back to back.
#pragma once

#include <cuda_runtime.h>

namespace coppice::kernels {

// Blocks until the kernels this one depends on have finished and their writes are visible.
__device__ __forceinline__ void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets kernels that depend on this one be scheduled; says nothing about this one's writes.
__device__ __forceinline__ void grid_dependency_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Launches with programmatic stream serialisation: the kernel may be scheduled while its
// predecessor drains, so every kernel launched this way starts with grid_dependency_wait.
template <typename Params>
cudaError_t launch_dependent(void (*kernel)(Params), dim3 grid, dim3 block, size_t shared_bytes,
                             const Params& params, cudaStream_t stream) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace coppice::kernels
