// Chooses the experts of each token from router logits (DeepSeek-V3 noaux_tc, one group).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// The top_k largest sigmoid(logit) + bias, ties to the lowest id, in descending order. Weights are
// the sigmoids of the chosen, over their sum if norm_topk_prob, times routed_scaling_factor.
struct MoeRouteParams {
  const float* logits = nullptr;        // [num_tokens, num_experts]
  const float* bias = nullptr;          // [num_experts] e_score_correction_bias
  const int32_t* seq_of_row = nullptr;  // [num_tokens]; a row with -1 gets ids -1; null: none is
  int32_t* topk_ids = nullptr;          // [num_tokens, top_k]
  float* topk_weights = nullptr;        // [num_tokens, top_k]
  int num_tokens = 0;
  int num_experts = 0;  // at most kMoeRouteMaxExperts
  int top_k = 0;        // at most num_experts and 32
  float routed_scaling_factor = 1;
  bool norm_topk_prob = true;
};

inline constexpr int kMoeRouteMaxExperts = 512;

cudaError_t moe_route(const MoeRouteParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
