// The blocks of one sequence, in the order of positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_allocator.h"

namespace coppice {

// Owns one use of each of its blocks; release() must come before destruction.
class BlockTable {
 public:
  explicit BlockTable(BlockAllocator& allocator) : allocator_(&allocator) {}
  ~BlockTable();
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&&) = delete;

  std::span<const std::int32_t> blocks() const { return blocks_; }
  std::int64_t num_positions() const;  // positions that have a slot
  // Where the key of a position lies: block * kBlockSize + offset, as in AttentionMetadata.
  std::int32_t slot_of(std::int64_t position) const;

  // Takes over blocks that the caller has retained; only while the table is empty.
  void adopt(std::vector<std::int32_t> blocks);
  // Slots for positions 0 .. num_positions - 1; all or nothing: false when blocks are short.
  bool reserve(std::int64_t num_positions);
  // Gives every block back, last to first.
  void release();

 private:
  BlockAllocator* allocator_;
  std::vector<std::int32_t> blocks_;
};

}  // namespace coppice
