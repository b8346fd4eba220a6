// Kernel launches with programmatic dependence on the kernel before them in the stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace coppice::kernels {

// The kernel may start while its predecessor still runs; it must call grid_dependency_wait() before
// it touches anything an earlier kernel of the stream reads or writes.
template <class... Params, class... Args>
cudaError_t launch_dependent(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
                             cudaStream_t stream, const Args&... args) {
  if (shared_bytes > 48 * 1024) {  // more than a kernel may have without asking
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

}  // namespace coppice::kernels
