// Counts who uses each block of the paged cache. Integers only.
//
// A block is free, used (by one or more sequences), or idle: unused, but its contents are named by
// the prefix index and may be taken up again. allocate() takes free blocks first, then the idle
// block that was released longest ago. A sequence releases its blocks last to first, so that a
// block always turns idle before the blocks it extends.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <vector>

namespace coppice {

// Not thread-safe: used by the engine's thread.
class BlockAllocator {
 public:
  explicit BlockAllocator(std::int64_t num_blocks);

  std::int64_t num_blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t num_idle() const { return static_cast<std::int64_t>(idle_.size()); }
  std::int64_t num_available() const { return num_free() + num_idle(); }
  std::int64_t num_used() const { return num_blocks() - num_available(); }
  std::int64_t ref_count(std::int32_t block) const { return at(block).ref_count; }
  bool is_cached(std::int32_t block) const { return at(block).cached; }

  // A block with one user, or nothing when all are used.
  std::optional<std::int32_t> allocate();
  // One more user; an idle block comes back to use.
  void retain(std::int32_t block);
  // One user less; the last one makes the block idle if it is cached, else free.
  void release(std::int32_t block);
  // The prefix index now names this used block.
  void mark_cached(std::int32_t block);
  // It no longer does; an idle block turns free. The listener is not told.
  void unmark_cached(std::int32_t block);

  // Told before an idle block is reused: its contents are about to go.
  void set_eviction_listener(std::function<void(std::int32_t block)> listener) {
    listener_ = std::move(listener);
  }

 private:
  struct Block {
    std::int64_t ref_count = 0;
    bool cached = false;
    std::list<std::int32_t>::iterator idle_place;  // valid while idle
  };
  Block& at(std::int32_t block);
  const Block& at(std::int32_t block) const;

  std::vector<Block> blocks_;
  std::vector<std::int32_t> free_;  // a stack: the lowest id on top at first
  std::list<std::int32_t> idle_;    // oldest first
  std::function<void(std::int32_t)> listener_;
};

}  // namespace coppice
