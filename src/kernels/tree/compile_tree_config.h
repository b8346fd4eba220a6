// Shared memory of compile_tree. No device code.
#pragma once

#include <cstddef>

namespace coppice::kernels {

struct CompileTreeConfig {
  size_t scores_bytes = 0;  // all scores, later the nodes of the score class that is cut
  size_t shared_bytes = 0;  // scores plus one tree
};

CompileTreeConfig choose_compile_tree(int num_seqs, int max_nodes, int max_path);

}  // namespace coppice::kernels
