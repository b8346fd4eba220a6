#include "kernels/common/launch.h"
#include "kernels/sample/sample_rows.cuh"

namespace coppice::kernels {

cudaError_t sample_rows(const SampleRowsParams& params, cudaStream_t stream) {
  const bool legal = params.vocab_size >= 4 && params.vocab_size % 4 == 0 &&
                     params.vocab_size <= 1 << 18 && params.row_stride % 4 == 0 &&
                     params.num_rows >= 0 && params.num_seqs >= 0 && params.num_seqs <= 65535;
  if (!legal) return cudaErrorInvalidValue;
  if (params.num_rows == 0 || params.num_seqs == 0) return cudaSuccess;
  const dim3 history_grid(8, static_cast<unsigned>(params.num_seqs));
  cudaError_t status = launch_dependent(count_history_kernel<false>, history_grid, kHistoryThreads,
                                        0, stream, params);
  if (status != cudaSuccess) return status;
  const SampleRowsConfig config = choose_sample_rows(params.num_rows, params.vocab_size);
  const size_t shared_bytes = sizeof(SampleShared) + config.marks_bytes;
  auto* kernel = config.blocks_per_row == 1 ? sample_rows_kernel : sample_rows_cluster_kernel;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(shared_bytes));
  if (status != cudaSuccess) return status;
  const auto blocks = static_cast<unsigned>(params.num_rows * config.blocks_per_row);
  status = launch_dependent(kernel, dim3(blocks), config.threads, shared_bytes, stream, params);
  if (status != cudaSuccess) return status;
  return launch_dependent(count_history_kernel<true>, history_grid, kHistoryThreads, 0, stream,
                          params);
}

}  // namespace coppice::kernels
