#include "backend/cuda/graph_cache.h"

#include "backend/cuda/cuda_check.h"

namespace coppice {

void GraphCache::clear() {
  for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
}

void GraphCache::run(const GraphKey& key, cudaStream_t stream, const std::function<void()>& body) {
  if (const auto found = graphs_.find(key); found != graphs_.end()) {
    cuda_check(cudaGraphLaunch(found->second, stream), "graph launch");
    return;
  }
  body();
  if (peers_ != nullptr) peers_->settle(stream);
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  body();
  cuda_check(cudaStreamEndCapture(stream, &graph), "end capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  cuda_check(status, "graph instantiation");
  graphs_.emplace(key, executable);
  if (peers_ == nullptr) return;
  cuda_check(cudaGraphUpload(executable, stream), "graph upload");
  peers_->settle(stream);
}

}  // namespace coppice
