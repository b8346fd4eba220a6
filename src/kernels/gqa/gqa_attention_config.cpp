#include "kernels/gqa/gqa_attention_config.h"

#include <algorithm>

namespace coppice::kernels {

int gqa_padded_group(int num_heads, int num_kv_heads) {
  int padded = 1;
  while (padded < num_heads / num_kv_heads) padded *= 2;
  return padded;
}

int gqa_max_chunks(int max_kv_len) {
  return std::max(1, (max_kv_len + kGqaChunkPositions - 1) / kGqaChunkPositions);
}

int gqa_splits(int num_rows, int num_kv_heads, int max_kv_len) {
  constexpr int kBlocks = 1056;  // four waves of two blocks on 132 multiprocessors
  const int pairs = num_rows * num_kv_heads;
  if (pairs > kGqaSplitPairs) return 1;
  return std::clamp(kBlocks / std::max(pairs, 1), 1, gqa_max_chunks(max_kv_len));
}

size_t gqa_attention_workspace_bytes(int max_kv_len, int head_dim) {
  return gqa_partial_bytes(head_dim == 64 ? 64 : 128) * kGqaSplitPairs *
         static_cast<size_t>(gqa_max_chunks(max_kv_len));
}

}  // namespace coppice::kernels
