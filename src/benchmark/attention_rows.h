// Rows of a step over a paged cache, as attention cases ask for them.
#pragma once

#include <vector>

#include "benchmark/kernel_case.h"

namespace coppice {

struct AttentionRows {
  enum class Kind : std::uint8_t {
    kTree,    // node i hangs below (i - 1) / 2; a single row is a tree's root
    kBlock,   // of a drafter: all see the context and the whole block
    kPrompt,  // a chunk of a prompt: each sees itself and all before it
  };

  std::int64_t batch, context, count;  // `count` rows of every sequence, behind its context
  Kind kind = Kind::kTree;

  std::int64_t blocks() const { return (context + count) / kBlockSize + 1; }  // of a sequence
  std::int64_t total() const { return batch * count; }
  // Through the block table; mean_keys() over all rows, without a tree's own.
  std::int64_t kv_len(std::int64_t row) const;
  double mean_keys() const;
  // Slots of a tree's row: itself last.
  std::vector<std::int32_t> path(std::int64_t row) const;
  // Every slot that a row sees, in order.
  std::vector<std::int64_t> slots(std::int64_t row) const;

  AttentionMetadata metadata(BenchSide& side) const;

 private:
  // Sequence b owns blocks b * blocks() .. in order: position p lies at slot first_slot() + p.
  std::int64_t first_slot(std::int64_t row) const { return row / count * blocks() * kBlockSize; }
};

}  // namespace coppice
