#include "kernels/tree/compile_tree_config.h"

namespace coppice::kernels {

CompileTreeConfig choose_compile_tree(int num_seqs, int max_nodes, int max_path) {
  CompileTreeConfig config;
  const auto nodes = static_cast<size_t>(max_nodes) + 1;
  const size_t all = static_cast<size_t>(num_seqs) * static_cast<size_t>(max_nodes);
  config.scores_bytes = (all * 12 + 15) / 16 * 16;
  config.shared_bytes = config.scores_bytes + nodes * 4 * (4 + static_cast<size_t>(max_path));
  return config;
}

}  // namespace coppice::kernels
