#include "kernels/tree/compile_tree_config.h"

namespace coppice::kernels {

CompileTreeConfig choose_compile_tree(int num_seqs, int max_nodes) {
  CompileTreeConfig config;
  config.single = num_seqs == 1;
  if (config.single) {
    config.threads = max_nodes <= 16 ? 128 : 512;
  } else {
    config.threads = num_seqs <= 16 ? 512 : 1024;
  }
  const auto nodes = static_cast<size_t>(max_nodes) + 1;
  const size_t tree = nodes * 4 * (3 + 5);  // TreeView
  const size_t all = static_cast<size_t>(num_seqs) * static_cast<size_t>(max_nodes);
  config.shared_bytes = (config.single ? nodes * 4 : all * 12) + tree;
  return config;
}

}  // namespace coppice::kernels
