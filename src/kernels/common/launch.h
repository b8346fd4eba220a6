// Kernel launches with programmatic dependence on the kernel before them in the stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace coppice::kernels {

// Before sm_90 launches wait for each other.
inline bool has_dependent_launch() {
  static const bool result = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
  }();
  return result;
}

// The kernel may start while its predecessor still runs; it must call grid_dependency_wait() before
// it touches anything an earlier kernel of the stream reads or writes. `cluster`: blocks in x that
// are scheduled together.
template <class... Params, class... Args>
cudaError_t launch_clusters(void (*kernel)(Params...), dim3 grid, unsigned cluster, int threads,
                            size_t shared_bytes, cudaStream_t stream, const Args&... args) {
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
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (has_dependent_launch()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

template <class... Params, class... Args>
cudaError_t launch_dependent(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
                             cudaStream_t stream, const Args&... args) {
  return launch_clusters(kernel, grid, 1, threads, shared_bytes, stream, args...);
}

}  // namespace coppice::kernels
