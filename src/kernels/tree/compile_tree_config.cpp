#include "kernels/tree/compile_tree_config.h"

namespace coppice::kernels {

CompileTreeConfig choose_compile_tree(int num_seqs, int max_nodes, int max_path) {
  CompileTreeConfig config;
  config.single = num_seqs == 1;
  const auto nodes = static_cast<size_t>(max_nodes) + 1;
  const size_t tree = nodes * 4 * (4 + static_cast<size_t>(max_path));
  const size_t all = static_cast<size_t>(num_seqs) * static_cast<size_t>(max_nodes);
  config.shared_bytes = (config.single ? nodes * 4 : all * 12) + tree;
  return config;
}

}  // namespace coppice::kernels
