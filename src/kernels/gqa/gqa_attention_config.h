// Host choices of the grouped-query attention kernel. None of them touches a result's bits.
#pragma once

#include <cstddef>

namespace coppice::kernels {

inline constexpr int kGqaChunkPositions = 512;  // keys of one partial result
inline constexpr int kGqaStep = 64;             // of them staged at once
inline constexpr int kGqaMaxStages = 4;         // steps in shared memory
inline constexpr int kGqaTileRows = 16;         // (token, head) pairs of one warp
inline constexpr int kGqaMaxTiles = 8;          // of a block: they share the staged keys
inline constexpr int kGqaMaxThreads = 256;      // of a block
inline constexpr int kGqaParts = 4;             // of a chunk, summed apart
inline constexpr int kGqaWindowRows = 256;      // tokens whose sequences one block looks through
inline constexpr int kGqaSplitRows = 4224;      // above so many (token, head) pairs, no split

// How a call is spread over the GPU.
struct GqaLaunch {
  int log2_group = 0;    // heads of a kv head, rounded up to a power of two
  int tiles = 1;         // of a block
  int column_parts = 2;  // warps of a tile: each takes a part of the value columns
  int stages = 2;        // steps of keys and values in shared memory
  int blocks = 1;        // of a cluster: they share the parts of a chunk
  int clusters = 1;      // that share the chunks of one window and kv head
  int windows = 1;
  int rows_of_tile = 0;  // in the form of tiles that stage their own keys; 0: in groups
  bool split = false;    // results leave chunk by chunk and are merged by a second kernel
  int max_chunks = 1;
  size_t shared_bytes = 0;

  int threads() const { return 32 * tiles * column_parts; }
};

struct GqaShape {
  int num_rows, num_seqs, num_heads, num_kv_heads, head_dim, max_kv_len, max_path;
};

// `has_clusters`: on this GPU (sm_90 and later).
GqaLaunch gqa_launch(const GqaShape& shape, bool has_clusters);

int gqa_padded_group(int num_heads, int num_kv_heads);

int gqa_max_chunks(int max_kv_len);

// Floats from one row to the next where a block leaves its part of a chunk.
constexpr int gqa_part_pitch(int head_dim) {
  return head_dim + 8;  // eight rows without bank conflicts
}

// Of a block: one step's keys and values.
constexpr size_t gqa_stage_bytes(int head_dim) {
  return size_t{2} * kGqaStep * 2 * static_cast<size_t>(head_dim);
}

// Where tiles stage their own keys: sides (keys or values) of steps that a warp has in shared
// memory. With a head dim of 64 two blocks share a multiprocessor.
constexpr int gqa_rows_sides(int head_dim) {
  return head_dim == 64 ? 2 : 3;
}

// Of a block.
constexpr size_t gqa_rows_shared_bytes(int head_dim) {
  const size_t side = size_t{2} * kGqaStep * static_cast<size_t>(head_dim);
  const size_t part = sizeof(float) * static_cast<size_t>(gqa_part_pitch(head_dim) + 2);
  return kGqaParts * (static_cast<size_t>(gqa_rows_sides(head_dim)) * side + kGqaTileRows * part);
}

// Sums and statistics of the chunks of kGqaSplitRows rows, in fp32.
size_t gqa_attention_workspace_bytes(int max_kv_len, int head_dim);

}  // namespace coppice::kernels
