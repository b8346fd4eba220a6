// Where a cache position of a sequence lies.
#pragma once

#include "backend/op_args.h"

namespace coppice::cpu {

// block_tables [B, max_blocks] i32 -> block * kBlockSize + offset.
inline std::int32_t slot_of(const Tensor& block_tables, std::int64_t sequence,
                            std::int64_t position) {
  const std::int64_t block = position / kBlockSize;
  COPPICE_CHECK_LT(block, block_tables.shape(1));
  const std::int64_t id = block_tables.row<std::int32_t>(sequence)[block];
  COPPICE_CHECK_GE(id, 0);
  return static_cast<std::int32_t>(id * kBlockSize + position % kBlockSize);
}

}  // namespace coppice::cpu
