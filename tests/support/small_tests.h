// Tools that watch every access slow a kernel down a thousandfold: with COPPICE_SMALL_TESTS set,
// tests of kernels keep one case of each kind (scripts/sanitize_cuda.py).
#pragma once

#include <cstdlib>

namespace coppice::testing {

inline bool small_tests() {
  return std::getenv("COPPICE_SMALL_TESTS") != nullptr;
}

}  // namespace coppice::testing
