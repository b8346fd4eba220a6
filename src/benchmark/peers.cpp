#include "benchmark/peers.h"

namespace coppice {

PeerTime fastest_peer(const Json& peers, const std::string& key) {
  PeerTime fastest;
  const Json* const all = peers.find("peers");
  const Json* const own = all == nullptr ? nullptr : all->find(key);
  if (own == nullptr) return fastest;
  for (const Json& peer : own->as_array()) {
    const double us = peer.find("us")->as_double();
    if (fastest.us > 0 && us >= fastest.us) continue;
    fastest = {.name = peer.find("name")->as_string(), .us = us};
  }
  return fastest;
}

}  // namespace coppice
