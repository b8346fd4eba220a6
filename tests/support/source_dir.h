// Where the repository's models and test data are.
#pragma once

#include <cstdlib>
#include <string>

namespace coppice::testing {

// The folder this was built from; COPPICE_SOURCE_DIR in the environment names a copy of it, for
// test binaries that run on another machine.
inline std::string source_dir() {
  const char* moved = std::getenv("COPPICE_SOURCE_DIR");
  return moved == nullptr ? COPPICE_SOURCE_DIR : moved;
}

}  // namespace coppice::testing
