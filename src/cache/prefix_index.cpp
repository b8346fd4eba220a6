#include "cache/prefix_index.h"

#include <algorithm>

#include "base/check.h"

namespace coppice {

PrefixIndex::PrefixIndex(BlockAllocator& allocator, int hash_bits)
    : allocator_(allocator),
      hash_mask_(hash_bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << hash_bits) - 1) {
  allocator_.set_eviction_listener([this](std::int32_t block) { forget(block); });
}

std::uint64_t PrefixIndex::hash_of(std::span<const std::int32_t> tokens) const {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  for (const std::int32_t token : tokens) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0xbf58476d1ce4e5b9u;
    hash ^= hash >> 29;
  }
  return hash & hash_mask_;
}

PrefixIndex::Node* PrefixIndex::find_child(Node& parent,
                                           std::span<const std::int32_t> tokens) const {
  const auto [begin, end] = parent.children.equal_range(hash_of(tokens));
  for (auto it = begin; it != end; ++it)
    if (std::equal(tokens.begin(), tokens.end(), it->second->tokens.begin(),
                   it->second->tokens.end()))
      return it->second.get();
  return nullptr;
}

std::vector<std::int32_t> PrefixIndex::match(std::span<const std::int32_t> tokens,
                                             std::int64_t max_tokens, const std::string& salt,
                                             bool prompt_only) {
  ++stats_.queries;
  std::vector<std::int32_t> blocks;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return blocks;
  const std::int64_t limit = std::min<std::int64_t>(max_tokens, std::ssize(tokens)) / kBlockSize;
  Node* node = root->second.get();
  for (std::int64_t i = 0; i < limit; ++i) {
    node = find_child(*node, tokens.subspan(static_cast<std::size_t>(i * kBlockSize), kBlockSize));
    if (node == nullptr || (prompt_only && node->provenance != Provenance::kPrompt)) break;
    allocator_.retain(node->block);
    blocks.push_back(node->block);
  }
  stats_.hits += blocks.empty() ? 0 : 1;
  stats_.hit_tokens += std::ssize(blocks) * kBlockSize;
  return blocks;
}

void PrefixIndex::insert(std::span<const std::int32_t> tokens, std::span<const std::int32_t> blocks,
                         std::span<const Provenance> provenance, const std::string& salt) {
  COPPICE_CHECK_LE(std::ssize(blocks) * kBlockSize, std::ssize(tokens));
  COPPICE_CHECK_EQ(blocks.size(), provenance.size());
  if (blocks.empty()) return;
  auto& root = roots_[salt];
  if (!root) {
    root = std::make_unique<Node>();
    root->salt = salt;
  }
  Node* node = root.get();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto part = tokens.subspan(i * kBlockSize, kBlockSize);
    Node* child = find_child(*node, part);
    // The holder of a block must hold the blocks before it: a foreign chain is not extended.
    if (child != nullptr && child->block != blocks[i]) return;
    if (child == nullptr) {
      COPPICE_CHECK(!node_of_block_.contains(blocks[i]), "block ", blocks[i], " named twice");
      auto made = std::make_unique<Node>();
      made->parent = node;
      made->block = blocks[i];
      made->provenance = provenance[i];
      made->tokens.assign(part.begin(), part.end());
      child = made.get();
      node->children.emplace(hash_of(part), std::move(made));
      node_of_block_.emplace(blocks[i], child);
      allocator_.mark_cached(blocks[i]);
    }
    node = child;
  }
}

void PrefixIndex::clear() {
  for (const auto& [block, node] : node_of_block_) allocator_.unmark_cached(block);
  node_of_block_.clear();
  roots_.clear();
}

void PrefixIndex::forget(std::int32_t block) {
  const auto found = node_of_block_.find(block);
  COPPICE_CHECK(found != node_of_block_.end(), "block ", block, " is not indexed");
  Node* node = found->second;
  COPPICE_CHECK(node->children.empty(), "block ", block, " still has children");
  node_of_block_.erase(found);
  ++stats_.evictions;
  Node* parent = node->parent;
  const auto [begin, end] = parent->children.equal_range(hash_of(node->tokens));
  parent->children.erase(
      std::find_if(begin, end, [&](const auto& entry) { return entry.second.get() == node; }));
  if (parent->parent == nullptr && parent->children.empty()) {
    const std::string salt = parent->salt;  // the root owns the string that names it
    roots_.erase(salt);
  }
}

}  // namespace coppice
