// The keys a row of attention sees, by position.
#pragma once

#include <algorithm>

#include "backend/op_args.h"

namespace coppice::cpu {

// Positions reduced together; steps start at multiples of it.
inline constexpr std::int64_t kAttentionStep = 64;

struct KeyRange {
  std::int64_t begin = 0;                // first visible position
  std::int64_t end = 0;                  // kv_len + path_len; 0 for a padded row
  std::int64_t kv_len = 0;               // positions below are found through the block table
  const std::int32_t* blocks = nullptr;  // the sequence's block table
  const std::int32_t* path = nullptr;    // slots of the positions from kv_len on

  static KeyRange of_row(const AttentionMetadata& metadata, std::int64_t row,
                         std::int64_t num_blocks) {
    const std::int32_t sequence = metadata.seq_of_row.data<std::int32_t>()[row];
    if (sequence < 0) return {};
    COPPICE_CHECK_LT(sequence, metadata.block_tables.shape(0));
    KeyRange range;
    range.kv_len = metadata.kv_len.data<std::int32_t>()[row];
    const std::int64_t path_len =
        metadata.path_len.empty() ? 0 : metadata.path_len.data<std::int32_t>()[row];
    range.end = range.kv_len + path_len;
    range.blocks = metadata.block_tables.row<std::int32_t>(sequence);
    range.path = path_len > 0 ? metadata.path.row<std::int32_t>(row) : nullptr;
    range.check(metadata, path_len, num_blocks);
    return range;
  }

  // Keys up to the row's own position only.
  void limit_to_position(std::int64_t position) { end = std::min(end, position + 1); }

  // Keys at positions > position - window only; window 0: all.
  void limit_to_window(std::int64_t position, std::int64_t window) {
    if (window > 0) begin = std::clamp<std::int64_t>(position - window + 1, 0, end);
  }

  std::int64_t first_step() const { return begin / kAttentionStep * kAttentionStep; }

  std::int64_t slot(std::int64_t position) const {
    if (position >= kv_len) return path[position - kv_len];
    return blocks[position / kBlockSize] * kBlockSize + position % kBlockSize;
  }

 private:
  // A wrong table would read outside the cache.
  void check(const AttentionMetadata& metadata, std::int64_t path_len,
             std::int64_t num_blocks) const {
    COPPICE_CHECK(kv_len >= 0 && kv_len <= metadata.block_tables.shape(1) * kBlockSize, kv_len);
    COPPICE_CHECK(path_len == 0 || path_len <= metadata.path.shape(1), path_len);
    for (std::int64_t i = 0; i * kBlockSize < kv_len; ++i)
      COPPICE_CHECK(blocks[i] >= 0 && blocks[i] < num_blocks, blocks[i], " of ", num_blocks);
    for (std::int64_t i = 0; i < path_len; ++i)
      COPPICE_CHECK(path[i] >= 0 && path[i] < num_blocks * kBlockSize, path[i]);
  }
};

}  // namespace coppice::cpu
