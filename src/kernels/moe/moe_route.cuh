// Device side of moe_route.h: one warp per token.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/moe/moe_route.h"

namespace coppice::kernels {

inline constexpr int kRouteWarps = 4;

// Larger scores give larger keys. NaN counts as lowest; 0 is no expert.
__device__ inline uint32_t route_key(float score) {
  const uint32_t bits = __float_as_uint(score);
  return score != score ? 1u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// `kPerLane` experts a lane: lane, lane + 32, ...
template <int kPerLane>
__global__ void __launch_bounds__(32 * kRouteWarps) moe_route_kernel(MoeRouteParams p) {
  const int token = blockIdx.x * kRouteWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  float bias[kPerLane];  // a constant: before the wait
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    bias[i] = lane + 32 * i < p.num_experts ? p.bias[lane + 32 * i] : 0.0f;
  }
  grid_dependency_launch();
  grid_dependency_wait();
  if (token >= p.num_tokens) return;
  const int64_t out = int64_t{token} * p.top_k + lane;
  if (p.seq_of_row && p.seq_of_row[token] < 0) {
    if (lane < p.top_k) {
      p.topk_ids[out] = -1;
      p.topk_weights[out] = 0.0f;
    }
    return;
  }

  float score[kPerLane];  // without bias
  uint32_t key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + 32 * i;
    score[i] = expert < p.num_experts ? p.logits[int64_t{token} * p.num_experts + expert] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    score[i] = __fdiv_rn(1.0f, 1.0f + expf(-score[i]));
    key[i] = lane + 32 * i < p.num_experts ? route_key(score[i] + bias[i]) : 0;
  }

  float weight = 0, sum = 0;  // lane k keeps slot k
  int chosen = 0;
  for (int slot = 0; slot < p.top_k; ++slot) {
    uint32_t best = key[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) best = max(best, key[i]);
    best = __reduce_max_sync(~0u, best);
    unsigned expert = ~0u;  // the lowest id among equals
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) {
      if (key[i] == best) expert = lane + 32 * i;
    }
    expert = __reduce_min_sync(~0u, expert);
    float mine = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (expert == lane + 32u * i) {
        mine = score[i];
        key[i] = 0;
      }
    }
    const float unbiased = __shfl_sync(~0u, mine, expert % 32);
    sum = __fadd_rn(sum, unbiased);
    if (lane == slot) {
      weight = unbiased;
      chosen = static_cast<int>(expert);
    }
  }
  if (lane < p.top_k) {
    if (p.norm_topk_prob) weight = __fdiv_rn(weight, __fadd_rn(sum, 1e-20f));
    p.topk_ids[out] = chosen;
    p.topk_weights[out] = __fmul_rn(weight, p.routed_scaling_factor);
  }
}

}  // namespace coppice::kernels
