// Which blocks already hold the keys of a given beginning of text. A tree of full blocks: a node is
// one block of kBlockSize tokens after its parent's. Found by hash, believed only after comparing
// every token and the salt. Integers only; never touches cache memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/op_args.h"
#include "cache/block_allocator.h"

namespace coppice {

struct PrefixStats {
  std::int64_t queries = 0;
  std::int64_t hits = 0;        // queries that found at least one block
  std::int64_t hit_tokens = 0;  // tokens found
  std::int64_t evictions = 0;
};

// Not thread-safe: used by the engine's thread. Outlived by the allocator.
class PrefixIndex {
 public:
  // hash_bits below 64 makes collisions frequent: for tests.
  explicit PrefixIndex(BlockAllocator& allocator, int hash_bits = 64);

  // The longest chain of indexed blocks that holds the beginning of `tokens`, at most `max_tokens`
  // of them. Retains every block for the caller. Requests only share within the same salt; with
  // prompt_only the chain ends before the first block computed from decided tokens.
  std::vector<std::int32_t> match(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
                                  const std::string& salt, bool prompt_only);

  // Names blocks[i], full and computed with `provenance[i]`, for tokens [i * kBlockSize,
  // (i + 1) * kBlockSize), for all i. Where the index already names another block for the same
  // beginning, that block stays and the rest is not indexed.
  void insert(std::span<const std::int32_t> tokens, std::span<const std::int32_t> blocks,
              std::span<const Provenance> provenance, const std::string& salt);

  // Forgets every block: idle ones turn free, used ones stay with their holders, whose next full
  // block names them again.
  void clear();

  std::int64_t num_blocks() const { return static_cast<std::int64_t>(node_of_block_.size()); }
  const PrefixStats& stats() const { return stats_; }

 private:
  struct Node {
    Node* parent = nullptr;  // null for the root of a salt
    std::int32_t block = -1;
    Provenance provenance = Provenance::kPrompt;
    std::vector<std::int32_t> tokens;  // [kBlockSize]
    std::unordered_multimap<std::uint64_t, std::unique_ptr<Node>> children;
    std::string salt;  // roots only
  };

  std::uint64_t hash_of(std::span<const std::int32_t> tokens) const;
  Node* find_child(Node& parent, std::span<const std::int32_t> tokens) const;
  void forget(std::int32_t block);

  BlockAllocator& allocator_;
  std::uint64_t hash_mask_;
  std::map<std::string, std::unique_ptr<Node>> roots_;  // by salt
  std::unordered_map<std::int32_t, Node*> node_of_block_;
  PrefixStats stats_;
};

}  // namespace coppice
