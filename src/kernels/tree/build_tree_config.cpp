#include "kernels/tree/build_tree_config.h"

namespace coppice::kernels {

BuildTreeConfig choose_build_tree(int depth, int k, int max_nodes) {
  BuildTreeConfig config;
  for (int slots = 1; slots <= 16; slots *= 2) {
    if (32 * slots < max_nodes) continue;
    config.slots = slots;
    break;
  }
  const auto table = static_cast<size_t>(depth + 1) * static_cast<size_t>(k + 1) * 4;
  const auto ids = static_cast<size_t>(depth) * static_cast<size_t>(k) * 4;
  const auto records = static_cast<size_t>(max_nodes + 1) * 8;
  config.shared_bytes = records + table + ids;
  return config;
}

}  // namespace coppice::kernels
