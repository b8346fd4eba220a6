// Captured rounds by key. The first run of a key is eager (it loads modules and is that round's
// real result), then the body is captured without executing; later runs are one graph launch. With
// several ranks all capture at the same run, while no rank has work under way.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <map>

#include "backend/backend.h"
#include "backend/cuda/peer_memory.h"

namespace coppice {

class GraphCache {
 public:
  // peers: of several ranks; null: one. Outlives it.
  explicit GraphCache(PeerMemory* peers) : peers_(peers) {}
  ~GraphCache() { clear(); }
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Enqueues body, or its captured graph, on `stream`.
  void run(const GraphKey& key, cudaStream_t stream, const std::function<void()>& body);
  void clear();

 private:
  PeerMemory* peers_;
  std::map<GraphKey, cudaGraphExec_t> graphs_;
};

}  // namespace coppice
