// Device side of moe_route.h: one warp per token.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/moe/moe_route.h"

namespace coppice::kernels {

inline constexpr int kRouteWarps = 4;

// Larger scores give larger keys, equal scores larger keys for lower ids. NaN counts as lowest.
__device__ inline uint64_t route_key(float score, int expert) {
  const uint32_t bits = __float_as_uint(score);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(score == score ? ordered : 1u) << 32 | (0xFFFFFFFFu - expert);
}

// `kPerLane` experts a lane: lane, lane + 32, ...
template <int kPerLane>
__global__ void __launch_bounds__(32 * kRouteWarps) moe_route_kernel(MoeRouteParams p) {
  const int token = blockIdx.x * kRouteWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
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
  uint64_t key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + 32 * i;
    score[i] = 0;
    key[i] = 0;
    if (expert < p.num_experts) {
      const float logit = p.logits[int64_t{token} * p.num_experts + expert];
      score[i] = __fdiv_rn(1.0f, 1.0f + expf(-logit));
      key[i] = route_key(score[i] + p.bias[expert], expert);
    }
  }

  float weight = 0, sum = 0;  // lane k keeps slot k
  int chosen = 0;
  for (int slot = 0; slot < p.top_k; ++slot) {
    uint64_t best = key[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) best = max(best, key[i]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      best = max(best, __shfl_xor_sync(~0u, best, distance));
    }
    const int expert = static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(best));
    float mine = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (expert == lane + 32 * i) {
        mine = score[i];
        key[i] = 0;
      }
    }
    const float unbiased = __shfl_sync(~0u, mine, expert % 32);
    sum = __fadd_rn(sum, unbiased);
    if (lane == slot) {
      weight = unbiased;
      chosen = expert;
    }
  }
  if (lane < p.top_k) {
    if (p.norm_topk_prob) weight = __fdiv_rn(weight, __fadd_rn(sum, 1e-20f));
    p.topk_ids[out] = chosen;
    p.topk_weights[out] = __fmul_rn(weight, p.routed_scaling_factor);
  }
}

}  // namespace coppice::kernels
