#include "cache/block_table.h"

#include <utility>

#include "backend/op_args.h"
#include "base/check.h"

namespace coppice {

BlockTable::~BlockTable() {
  COPPICE_CHECK(blocks_.empty(), "a block table was dropped with ", blocks_.size(), " blocks");
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : allocator_(other.allocator_), blocks_(std::exchange(other.blocks_, {})) {}

std::int64_t BlockTable::num_positions() const {
  return std::ssize(blocks_) * kBlockSize;
}

std::int32_t BlockTable::slot_of(std::int64_t position) const {
  COPPICE_CHECK_LT(position, num_positions());
  const std::int64_t block = blocks_[static_cast<std::size_t>(position / kBlockSize)];
  return static_cast<std::int32_t>(block * kBlockSize + position % kBlockSize);
}

void BlockTable::adopt(std::vector<std::int32_t> blocks) {
  COPPICE_CHECK(blocks_.empty());
  blocks_ = std::move(blocks);
}

bool BlockTable::reserve(std::int64_t num_positions) {
  const std::int64_t wanted = (num_positions + kBlockSize - 1) / kBlockSize;
  if (wanted - std::ssize(blocks_) > allocator_->num_available()) return false;
  while (std::ssize(blocks_) < wanted) blocks_.push_back(*allocator_->allocate());
  return true;
}

void BlockTable::release() {
  while (!blocks_.empty()) {
    allocator_->release(blocks_.back());
    blocks_.pop_back();
  }
}

}  // namespace coppice
