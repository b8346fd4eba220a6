// A backend that passes every op on and remembers what the router chose.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "backend/trace/forwarding_backend.h"

namespace coppice::testing {

class SpyBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void clear() { calls_.clear(); }

  // Experts and weights of the row-th routed row since clear(), in routed layer `layer` of
  // `num_layers`: calls come layer by layer for every step.
  std::vector<std::pair<std::int32_t, float>> routed(std::size_t layer, std::size_t num_layers,
                                                     std::size_t row) const {
    for (std::size_t call = layer; call < calls_.size(); call += num_layers) {
      const Call& step = calls_[call];
      const std::size_t rows = step.ids.size() / step.top_k;
      if (row >= rows) {
        row -= rows;
        continue;
      }
      std::vector<std::pair<std::int32_t, float>> result;
      for (std::size_t k = 0; k < step.top_k; ++k)
        result.emplace_back(step.ids[row * step.top_k + k], step.weights[row * step.top_k + k]);
      return result;
    }
    return {};
  }

  void moe_block(const MoeBlockArgs& args) override { Backend::moe_block(args); }  // its steps
  void moe_route(const MoeRouteArgs& args) override {
    inner_->moe_route(args);
    Call& call = calls_.emplace_back();
    call.top_k = static_cast<std::size_t>(args.topk_ids.shape(1));
    call.ids.resize(static_cast<std::size_t>(args.topk_ids.num_elements()));
    call.weights.resize(call.ids.size());
    inner_->download(call.ids.data(), args.topk_ids);
    inner_->download(call.weights.data(), args.topk_weights);
  }

 private:
  struct Call {
    std::size_t top_k = 0;
    std::vector<std::int32_t> ids;  // [T, top_k]
    std::vector<float> weights;     // [T, top_k]
  };
  std::vector<Call> calls_;
};

}  // namespace coppice::testing
