// Instance and shared memory of compile_tree. No device code.
#pragma once

#include <cstddef>

namespace coppice::kernels {

struct CompileTreeConfig {
  bool single = false;      // one sequence has its own kernel
  int threads = 0;          // 128 or 512 (single), 512 or 1024 (batch)
  size_t shared_bytes = 0;  // merge keys of all nodes (batch), then one tree
};

CompileTreeConfig choose_compile_tree(int num_seqs, int max_nodes);

}  // namespace coppice::kernels
