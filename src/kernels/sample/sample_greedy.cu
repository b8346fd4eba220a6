#include "kernels/common/launch.h"
#include "kernels/sample/sample_greedy.cuh"

namespace coppice::kernels {

size_t sample_greedy_workspace_bytes(int max_rows) {
  return static_cast<size_t>(max_rows) * sizeof(GreedyRow);
}

cudaError_t sample_greedy(const SampleGreedyParams& params, cudaStream_t stream) {
  const bool legal = params.vocab_size >= 4 && params.vocab_size % 4 == 0 &&
                     params.row_stride % 4 == 0 && params.num_rows >= 0 &&
                     params.num_rows <= params.max_rows && params.num_rows <= 65535;
  if (!legal) return cudaErrorInvalidValue;
  if (params.num_rows == 0) return cudaSuccess;
  const int segments = (params.vocab_size + kGreedySegment - 1) / kGreedySegment;
  const dim3 grid(static_cast<unsigned>(segments), static_cast<unsigned>(params.num_rows));
  return launch_dependent(sample_greedy_kernel, grid, kGreedyThreads, 0, stream, params);
}

}  // namespace coppice::kernels
