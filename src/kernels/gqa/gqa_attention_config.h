// Host choices of the grouped-query attention kernel. None of them touches a result's bits.
#pragma once

#include <cstddef>

namespace coppice::kernels {

inline constexpr int kGqaChunkPositions = 512;  // keys of one partial result
inline constexpr int kGqaTileRows = 16;         // (token, head) pairs of one block
inline constexpr int kGqaSplitPairs = 264;      // above so many (row, kv head) pairs, no split

// Heads of one group, rounded up to a power of two.
int gqa_padded_group(int num_heads, int num_kv_heads);

// Blocks that share the chunks of one tile.
int gqa_splits(int num_rows, int num_kv_heads, int max_kv_len);

int gqa_max_chunks(int max_kv_len);

// Sums and statistics of one tile's chunk, in fp32.
constexpr size_t gqa_partial_bytes(int head_dim) {
  return sizeof(float) * kGqaTileRows * static_cast<size_t>(head_dim + 2);
}
size_t gqa_attention_workspace_bytes(int max_kv_len, int head_dim);

}  // namespace coppice::kernels
