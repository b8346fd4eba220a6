// Fixed partition of a row and the workspace that follows from it. No device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice::kernels {

inline constexpr int kTopKChunk = 1024;        // ids summed by one warp
inline constexpr int kTopKGroup = 64;          // ids behind one group maximum
inline constexpr int kTopKChunksPerBlock = 8;  // one per warp

// Whether a cluster of blocks takes each row: the last block of a row then finds the row's parts in
// shared memory, but a block reads more of it. Measured: 7 and 15 rows gain, 1, 30 and more do not.
constexpr bool top_k_by_clusters(int num_rows) {
  return num_rows >= 4 && num_rows <= 24;
}

struct TopKLogProbsConfig {
  int num_chunks = 0;  // of a row
  int num_groups = 0;  // of a row, whole chunks
  int blocks_per_row = 0;
  size_t sums_offset = 0;    // in the workspace: float2 [max_rows, num_chunks]
  size_t maxima_offset = 0;  // float [max_rows, num_groups]
  size_t workspace_bytes = 0;
};

TopKLogProbsConfig choose_top_k_log_probs(int max_rows, int vocab_size);

}  // namespace coppice::kernels
