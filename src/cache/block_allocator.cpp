#include "cache/block_allocator.h"

#include "base/check.h"

namespace coppice {

BlockAllocator::BlockAllocator(std::int64_t num_blocks)
    : blocks_(static_cast<std::size_t>(num_blocks)) {
  for (std::int64_t block = num_blocks - 1; block >= 0; --block)
    free_.push_back(static_cast<std::int32_t>(block));
}

BlockAllocator::Block& BlockAllocator::at(std::int32_t block) {
  COPPICE_CHECK(block >= 0 && block < num_blocks(), "block ", block, " of ", num_blocks());
  return blocks_[static_cast<std::size_t>(block)];
}

const BlockAllocator::Block& BlockAllocator::at(std::int32_t block) const {
  return const_cast<BlockAllocator*>(this)->at(block);
}

std::optional<std::int32_t> BlockAllocator::allocate() {
  std::int32_t block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (!idle_.empty()) {
    block = idle_.front();
    if (listener_) listener_(block);
    idle_.pop_front();
    at(block).cached = false;
  } else {
    return std::nullopt;
  }
  at(block).ref_count = 1;
  return block;
}

void BlockAllocator::retain(std::int32_t block) {
  Block& entry = at(block);
  if (entry.ref_count == 0) {
    COPPICE_CHECK(entry.cached, "block ", block, " is free");
    idle_.erase(entry.idle_place);
  }
  ++entry.ref_count;
}

void BlockAllocator::release(std::int32_t block) {
  Block& entry = at(block);
  COPPICE_CHECK_LT(0, entry.ref_count);
  if (--entry.ref_count > 0) return;
  if (entry.cached)
    entry.idle_place = idle_.insert(idle_.end(), block);
  else
    free_.push_back(block);
}

void BlockAllocator::mark_cached(std::int32_t block) {
  COPPICE_CHECK_LT(0, at(block).ref_count);
  at(block).cached = true;
}

void BlockAllocator::unmark_cached(std::int32_t block) {
  Block& entry = at(block);
  COPPICE_CHECK(entry.cached, "block ", block, " is not cached");
  entry.cached = false;
  if (entry.ref_count > 0) return;
  idle_.erase(entry.idle_place);
  free_.push_back(block);
}

}  // namespace coppice
