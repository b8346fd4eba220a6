// Choice of the build_tree instance. No device code.
#pragma once

#include <cstddef>

namespace coppice::kernels {

// Trees of at most this many nodes are grown a node at a time, larger ones by rounds.
inline constexpr int kStepwiseBudget = 32;
inline constexpr int kBuildTreeThreads = 128;
inline constexpr int kRoundsThreads = 512;

// Nodes that the lists of a tree grown by rounds hold.
constexpr int tree_list_capacity(int slots) {
  return slots <= 2 ? 1024 : slots == 4 ? 2048 : 4096;
}

constexpr size_t draft_rows_bytes() {
  return 16 * 64 * 8 + 128;
}
constexpr size_t tree_lists_bytes(int slots) {
  const auto list = static_cast<size_t>(tree_list_capacity(slots));
  return 16 * 64 * 4 + list * 14 + list / 4 * 6 + 80 + kRoundsThreads / 32 * 128;
}

struct BuildTreeConfig {
  int slots = 0;  // candidates held by one lane: 1, 2, 4, 8 or 16; 0: max_nodes is too large
  bool by_rounds = false;
  size_t shared_bytes = 0;
};

BuildTreeConfig choose_build_tree(int depth, int k, int max_nodes);

}  // namespace coppice::kernels
