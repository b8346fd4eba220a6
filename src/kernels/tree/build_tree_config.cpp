#include "kernels/tree/build_tree_config.h"

namespace coppice::kernels {

BuildTreeConfig choose_build_tree(int depth, int k, int max_nodes) {
  BuildTreeConfig config;
  for (int slots = 1; slots <= 16; slots *= 2) {
    if (32 * slots < max_nodes) continue;
    config.slots = slots;
    break;
  }
  const auto entries = static_cast<size_t>(depth) * static_cast<size_t>(k);
  const auto records = static_cast<size_t>(max_nodes + 1) * 16;
  config.shared_bytes = records + (entries + 1) * 16 + (entries + 3) / 4 * 32;
  return config;
}

}  // namespace coppice::kernels
