// Choice of the build_tree instance. No device code.
#pragma once

#include <cstddef>

namespace coppice::kernels {

struct BuildTreeConfig {
  int slots = 0;  // candidates held by one lane: 1, 2, 4, 8 or 16; 0: max_nodes is too large
  size_t shared_bytes = 0;
};

BuildTreeConfig choose_build_tree(int depth, int k, int max_nodes);

}  // namespace coppice::kernels
