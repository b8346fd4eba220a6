// Instance and shared memory of compile_tree. No device code.
#pragma once

#include <cstddef>

namespace coppice::kernels {

struct CompileTreeConfig {
  bool single = false;      // one sequence: its own kernel, no histogram
  size_t shared_bytes = 0;  // merge keys of all nodes (batch), then one tree with its paths
};

CompileTreeConfig choose_compile_tree(int num_seqs, int max_nodes, int max_path);

}  // namespace coppice::kernels
