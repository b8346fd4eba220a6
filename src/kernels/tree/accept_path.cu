#include "kernels/common/launch.h"
#include "kernels/tree/accept_path.cuh"

namespace coppice::kernels {

cudaError_t accept_path(const AcceptPathParams& params, cudaStream_t stream) {
  const bool legal = params.num_seqs >= 0 && params.max_path >= 1 && params.max_path <= 32 &&
                     params.trees.max_nodes >= 0 && params.trees.max_nodes < 8192;
  if (!legal) return cudaErrorInvalidValue;
  if (params.num_seqs == 0) return cudaSuccess;
  const size_t shared_bytes = static_cast<size_t>(params.trees.max_nodes + 1) * sizeof(int32_t);
  return launch_dependent(accept_path_kernel, dim3(static_cast<unsigned>(params.num_seqs)), 32,
                          shared_bytes, stream, params);
}

}  // namespace coppice::kernels
