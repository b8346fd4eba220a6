#include "kernels/sample/top_k_log_probs_config.h"

namespace coppice::kernels {
namespace {

size_t round_up(size_t bytes) {
  return (bytes + 127) / 128 * 128;
}

}  // namespace

TopKLogProbsConfig choose_top_k_log_probs(int max_rows, int vocab_size) {
  TopKLogProbsConfig config;
  config.num_chunks = (vocab_size + kTopKChunk - 1) / kTopKChunk;
  config.num_groups = config.num_chunks * (kTopKChunk / kTopKGroup);
  config.blocks_per_row = (config.num_chunks + kTopKChunksPerBlock - 1) / kTopKChunksPerBlock;
  const auto rows = static_cast<size_t>(max_rows);
  config.sums_offset = round_up(rows * sizeof(int32_t));
  config.maxima_offset =
      config.sums_offset + round_up(rows * static_cast<size_t>(config.num_chunks) * 8);
  config.workspace_bytes =
      config.maxima_offset + round_up(rows * static_cast<size_t>(config.num_groups) * 4);
  return config;
}

}  // namespace coppice::kernels
