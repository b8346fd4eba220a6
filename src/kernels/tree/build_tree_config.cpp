#include "kernels/tree/build_tree_config.h"

#include <algorithm>

namespace coppice::kernels {

BuildTreeConfig choose_build_tree(int depth, int k, int max_nodes) {
  BuildTreeConfig config;
  for (int slots = 1; slots <= 16; slots *= 2) {
    if (32 * slots < max_nodes) continue;
    config.slots = slots;
    break;
  }
  const auto entries = static_cast<size_t>(depth) * static_cast<size_t>(k);
  const size_t stepwise = static_cast<size_t>(max_nodes + 1) * 16 + (entries + 1) * 16;
  config.by_rounds = max_nodes > kStepwiseBudget;
  if (!config.by_rounds) {
    config.shared_bytes = stepwise + (entries + 3) / 4 * 32;
    return config;
  }
  config.shared_bytes = draft_rows_bytes() + std::max(stepwise, tree_lists_bytes(config.slots));
  return config;
}

}  // namespace coppice::kernels
