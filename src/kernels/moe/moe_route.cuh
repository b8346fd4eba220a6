// Device side of moe_route.h: four warps choose a token's experts.
//
// Each warp finds the best of its quarter of the experts, one slot after another; a candidate's
// slot is then the number of candidates that beat it. Loops stay rolled: this code runs once a
// layer, and what runs once is slow for want of its instructions.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/moe/moe_route.h"

namespace coppice::kernels {

inline constexpr int kRouteWarps = 4;
inline constexpr int kRouteThreads = 32 * kRouteWarps;
inline constexpr int kRouteMaxTopK = 32;

inline bool valid_route(const MoeRouteParams& p) {
  return p.num_experts <= kMoeRouteMaxExperts && p.top_k <= p.num_experts &&
         p.top_k <= kRouteMaxTopK && p.top_k >= 1;
}

// Larger scores give larger keys. NaN counts as lowest; 0 is no expert.
__device__ inline uint32_t route_key(float score) {
  const uint32_t bits = __float_as_uint(score);
  return score != score ? 1u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct RouteShared {
  alignas(16) uint2 candidate[kRouteWarps * kRouteMaxTopK];  // key, expert
  float candidate_score[kRouteWarps * kRouteMaxTopK];
  int expert[kRouteMaxTopK];  // by slot
  alignas(16) float score[kRouteMaxTopK];
};

// The warp's best top_k experts of `key`, those of equal keys by lowest id, as candidates.
// `kPerThread` experts a thread: thread, thread + kRouteThreads, ...
template <int kPerThread>
__device__ inline void route_candidates(uint32_t (&key)[kPerThread],
                                        const float (&score)[kPerThread], int top_k,
                                        RouteShared& shared) {
  const unsigned thread = threadIdx.x;
  int at = static_cast<int>(thread) / 32 * top_k;
#pragma unroll 1
  for (const int end = at + top_k; at < end; ++at) {
    uint32_t best = key[0];
#pragma unroll
    for (int i = 1; i < kPerThread; ++i) best = max(best, key[i]);
    best = __reduce_max_sync(~0u, best);
    unsigned expert = ~0u;
#pragma unroll
    for (int i = kPerThread - 1; i >= 0; --i) {
      if (key[i] == best) expert = thread + kRouteThreads * i;
    }
    expert = __reduce_min_sync(~0u, expert);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (expert != thread + kRouteThreads * i) continue;
      shared.candidate[at] = make_uint2(best, expert);
      shared.candidate_score[at] = score[i];
      key[i] = 0;
    }
  }
}

// This thread's experts' biases: constants, to be read before the wait for the kernel before.
template <int kPerThread>
__device__ inline void route_bias(const MoeRouteParams& p, float (&bias)[kPerThread]) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int expert = static_cast<int>(threadIdx.x) + kRouteThreads * i;
    bias[i] = expert < p.num_experts ? p.bias[expert] : 0.0f;
  }
}

// One token by kRouteThreads threads, the first of their block.
template <int kPerThread>
__device__ inline void route_token(const MoeRouteParams& p, int token,
                                   const float (&bias)[kPerThread], RouteShared& shared) {
  const int thread = threadIdx.x;
  float logit[kPerThread];  // asked for before it is known whether the row is inert
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int expert = thread + kRouteThreads * i;
    logit[i] = expert < p.num_experts ? p.logits[int64_t{token} * p.num_experts + expert] : 0.0f;
  }
  const int64_t out = int64_t{token} * p.top_k + thread;
  if (p.seq_of_row && p.seq_of_row[token] < 0) {
    if (thread < p.top_k) {
      p.topk_ids[out] = -1;
      p.topk_weights[out] = 0.0f;
    }
    return;
  }
  float score[kPerThread];  // without bias
  uint32_t key[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int expert = thread + kRouteThreads * i;
    score[i] = __fdiv_rn(1.0f, 1.0f + expf(-logit[i]));
    key[i] = expert < p.num_experts ? route_key(score[i] + bias[i]) : 0;
  }
  route_candidates(key, score, p.top_k, shared);
  __syncthreads();
  const int candidates = kRouteWarps * p.top_k;
  if (thread < candidates) {
    const uint2 mine = shared.candidate[thread];
    int slot = 0;
    const uint4* pairs = reinterpret_cast<const uint4*>(shared.candidate);
#pragma unroll 4
    for (int i = 0; i < candidates / 2; ++i) {
      const uint4 two = pairs[i];
      slot += two.x > mine.x || (two.x == mine.x && two.y < mine.y);
      slot += two.z > mine.x || (two.z == mine.x && two.w < mine.y);
    }
    if (mine.x != 0 && slot < p.top_k) {
      shared.expert[slot] = static_cast<int>(mine.y);
      shared.score[slot] = shared.candidate_score[thread];
    }
  }
  __syncthreads();
  if (thread >= p.top_k) return;
  float weight = shared.score[thread];
  if (p.norm_topk_prob) {
    float sum = 0;
#pragma unroll 1
    for (int slot = 0; slot < p.top_k; slot += 4) {
      const float4 next = *reinterpret_cast<const float4*>(&shared.score[slot]);
      sum = __fadd_rn(sum, next.x);
      if (slot + 1 < p.top_k) sum = __fadd_rn(sum, next.y);
      if (slot + 2 < p.top_k) sum = __fadd_rn(sum, next.z);
      if (slot + 3 < p.top_k) sum = __fadd_rn(sum, next.w);
    }
    weight = __fdiv_rn(weight, __fadd_rn(sum, 1e-20f));
  }
  p.topk_ids[out] = shared.expert[thread];
  p.topk_weights[out] = __fmul_rn(weight, p.routed_scaling_factor);
}

// One block per token.
template <int kPerThread>
__global__ void __launch_bounds__(kRouteThreads) moe_route_kernel(MoeRouteParams p) {
  __shared__ RouteShared shared;
  float bias[kPerThread];
  route_bias(p, bias);
  grid_dependency_launch();
  grid_dependency_wait();
  route_token<kPerThread>(p, static_cast<int>(blockIdx.x), bias, shared);
}

}  // namespace coppice::kernels
