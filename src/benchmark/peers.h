// Times of other people's kernels, as bench/peers writes them (docs/bench.md).
#pragma once

#include <string>

#include "io/json.h"

namespace coppice {

struct PeerTime {
  std::string name = {};
  double us = 0;  // 0: nobody's
};

// The fastest peer of `key` in a file of bench/peers, which may be null.
PeerTime fastest_peer(const Json& peers, const std::string& key);

}  // namespace coppice
