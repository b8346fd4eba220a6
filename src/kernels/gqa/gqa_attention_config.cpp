#include "kernels/gqa/gqa_attention_config.h"

#include <algorithm>

#include "kernels/gqa/gqa_groups.h"

namespace coppice::kernels {
namespace {

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

// Rows of a tile that stages its own keys, or 0 where groups are faster: trees, whose rows' keys
// differ, and sequences of so many rows that their keys would be staged too often.
int gqa_rows_of_tile(const GqaShape& s, int padded) {
  const int seqs = std::max(s.num_seqs, 1), rows_of_seq = divide_up(s.num_rows, seqs);
  if (rows_of_seq == 1) return 1;
  const int rows = kGqaTileRows / padded;
  const bool has_trees = s.max_path > 1;
  const bool tiles_are_of_one_sequence = seqs == 1 || rows_of_seq % rows == 0;
  const bool few = rows_of_seq * padded <= kGqaMaxTiles * kGqaTileRows;
  return has_trees || !tiles_are_of_one_sequence || !few ? 0 : rows;
}

// How many blocks share the chunks of a tile that stages its own keys, of `blocks` tiles. The time
// is counted in chunks: a block spends some on its beginning, and so does merging what was split.
int gqa_rows_splits(int blocks, int resident, int max_chunks) {
  constexpr double kStart = 0.7, kCombine = 1.5;
  int best = 1;
  double best_time = 0;
  for (int waves = 1; waves <= 8; waves++) {
    const int splits = std::clamp(waves * resident / blocks, 1, max_chunks);
    const double time =
        divide_up(blocks * splits, resident) * (divide_up(max_chunks, splits) + kStart) +
        (splits > 1 ? kCombine : 0);
    if (waves == 1 || time < best_time) best = splits, best_time = time;
  }
  return best;
}

}  // namespace

int gqa_padded_group(int num_heads, int num_kv_heads) {
  int padded = 1;
  while (padded < num_heads / num_kv_heads) padded *= 2;
  return padded;
}

int gqa_max_chunks(int max_kv_len) {
  return std::max(1, divide_up(max_kv_len, kGqaChunkPositions));
}

GqaLaunch gqa_launch(const GqaShape& s, bool has_clusters) {
  constexpr int kClusters = 30;  // of four blocks, alone on their multiprocessors, on an H200
  GqaLaunch l;
  const int padded = gqa_padded_group(s.num_heads, s.num_kv_heads);
  while (1 << l.log2_group < padded) l.log2_group++;
  l.blocks = has_clusters ? kGqaParts : 1;
  // Two fit in the 99 KB of the smaller GPUs without clusters.
  const int most_tiles = has_clusters ? kGqaMaxTiles : 2;
  const int rows_of_seq = divide_up(s.num_rows, std::max(s.num_seqs, 1));
  l.tiles = std::min(divide_up(rows_of_seq * padded, kGqaTileRows), most_tiles);
  l.column_parts = kGqaMaxThreads / 32 / (l.tiles <= 2 ? 2 : l.tiles <= 4 ? 4 : 8);
  const bool shares = l.tiles == 1;  // the multiprocessor with another block
  l.stages = !has_clusters || shares || (s.head_dim == 64 && l.tiles > 4) ? 2 : kGqaMaxStages;
  const size_t part = sizeof(float) * static_cast<size_t>(gqa_part_pitch(s.head_dim) + 2);
  l.shared_bytes = sizeof(GqaGroups) + part * kGqaTileRows * static_cast<size_t>(l.tiles) +
                   gqa_stage_bytes(s.head_dim) * static_cast<size_t>(l.stages);
  l.max_chunks = gqa_max_chunks(s.max_kv_len);
  l.split = s.num_rows * s.num_heads <= kGqaSplitRows && l.max_chunks > 1;
  l.windows = divide_up(s.num_rows, kGqaWindowRows);
  l.rows_of_tile = has_clusters ? gqa_rows_of_tile(s, padded) : 0;
  if (l.rows_of_tile > 0) {
    constexpr int kMultiprocessors = 132;
    const int resident = (s.head_dim == 64 ? 2 : 1) * kMultiprocessors;
    const int blocks = divide_up(s.num_rows, l.rows_of_tile) * s.num_kv_heads;
    l.clusters = l.split ? gqa_rows_splits(blocks, resident, l.max_chunks) : 1;
    l.split = l.clusters > 1;
    l.shared_bytes = gqa_rows_shared_bytes(s.head_dim);
    return l;
  }
  const int items = std::min(s.num_rows, kGqaWindowRows) * (l.split ? l.max_chunks : 1);
  l.clusters = std::clamp((shares ? 2 : 1) * kClusters / (s.num_kv_heads * l.windows), 1, items);
  return l;
}

size_t gqa_attention_workspace_bytes(int max_kv_len, int head_dim) {
  return sizeof(float) * static_cast<size_t>(head_dim + 2) * kGqaSplitRows *
         static_cast<size_t>(gqa_max_chunks(max_kv_len));
}

}  // namespace coppice::kernels
