#include "kernels/common/launch.h"
#include "kernels/sample/top_k_cluster.cuh"
#include "kernels/sample/top_k_log_probs.cuh"

namespace coppice::kernels {

size_t top_k_log_probs_workspace_bytes(int max_rows, int vocab_size) {
  return choose_top_k_log_probs(max_rows, vocab_size).workspace_bytes;
}

cudaError_t top_k_log_probs(const TopKLogProbsParams& params, cudaStream_t stream) {
  const bool legal = params.k >= 1 && params.k <= kTopKMax && params.vocab_size >= 8 &&
                     params.vocab_size % 8 == 0 && params.vocab_size <= 1 << 18 &&
                     params.row_stride % 8 == 0 && params.num_rows >= 0 &&
                     params.num_rows <= params.max_rows && params.num_rows <= 65535;
  if (!legal) return cudaErrorInvalidValue;
  if (params.num_rows == 0) return cudaSuccess;
  const TopKLogProbsConfig config = choose_top_k_log_probs(params.max_rows, params.vocab_size);
  char* workspace = static_cast<char*>(params.workspace);
  TopKKernelParams kernel_params{params,
                                 config.num_chunks,
                                 config.num_groups,
                                 reinterpret_cast<int*>(workspace),
                                 reinterpret_cast<float2*>(workspace + config.sums_offset),
                                 reinterpret_cast<float*>(workspace + config.maxima_offset)};
  const auto rows = static_cast<unsigned>(params.num_rows);
  if (top_k_by_clusters(params.num_rows)) {
    return launch_dependent(params.logits_are_bf16 ? top_k_cluster_kernel<Bf16Logits>
                                                   : top_k_cluster_kernel<FloatLogits>,
                            dim3(kTopKCluster, rows), kTopKThreads, 0, stream, kernel_params);
  }
  return launch_dependent(params.logits_are_bf16 ? top_k_log_probs_kernel<Bf16Logits, 5>
                                                 : top_k_log_probs_kernel<FloatLogits, 4>,
                          dim3(static_cast<unsigned>(config.blocks_per_row), rows), kTopKThreads, 0,
                          stream, kernel_params);
}

cudaError_t merge_top_k(const MergeTopKParams& params, cudaStream_t stream) {
  const bool legal = params.k >= 1 && params.k <= kTopKMax && params.num_shards >= 1 &&
                     params.num_shards * params.k <= kTopKListCapacity && params.num_rows >= 0;
  if (!legal) return cudaErrorInvalidValue;
  if (params.num_rows == 0) return cudaSuccess;
  return launch_dependent(merge_top_k_kernel, dim3(static_cast<unsigned>(params.num_rows)),
                          kTopKThreads, 0, stream, params);
}

}  // namespace coppice::kernels
