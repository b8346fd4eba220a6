// One pass in blocks of 8192 ids; the blocks of a row meet in an integer maximum, whose result does
// not depend on their order.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/sample/order_key.cuh"
#include "kernels/sample/sample_greedy.h"

namespace coppice::kernels {

inline constexpr int kGreedyThreads = 256;
inline constexpr int kGreedyVectors = 8;
inline constexpr int kGreedySegment = kGreedyThreads * kGreedyVectors * 4;  // ids per block

struct GreedyRow {
  unsigned long long best;  // ranked_key
  int arrivals;
  int not_finite;
};

// Best ranked_key of the thread's share of a segment; sets bit 31 and up of `magnitude` when a
// value is not finite.
__device__ __forceinline__ uint64_t scan_segment(const float* logits, int first, int vocab_size,
                                                 uint32_t& magnitude) {
  float4 values[kGreedyVectors];
#pragma unroll
  for (int j = 0; j < kGreedyVectors; ++j) {
    const int id = first + (j * kGreedyThreads + static_cast<int>(threadIdx.x)) * 4;
    values[j] = id < vocab_size ? *reinterpret_cast<const float4*>(logits + id)
                                : float4{-1e38f, -1e38f, -1e38f, -1e38f};
  }
  float best = -INFINITY;
  int best_id = first + static_cast<int>(threadIdx.x) * 4;
#pragma unroll
  for (int j = 0; j < kGreedyVectors; ++j) {
    const int id = first + (j * kGreedyThreads + static_cast<int>(threadIdx.x)) * 4;
    const float elements[4] = {values[j].x, values[j].y, values[j].z, values[j].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      magnitude = max(magnitude, __float_as_uint(elements[e]) & 0x7fffffffu);
      if (elements[e] > best) {
        best = elements[e];
        best_id = id + e;
      }
    }
  }
  return best_id < vocab_size ? ranked_key(best, static_cast<uint32_t>(best_id)) : 0;
}

// grid: (segments, rows)
__global__ __launch_bounds__(kGreedyThreads) void sample_greedy_kernel(SampleGreedyParams params) {
  __shared__ uint64_t warp_best[kGreedyThreads / 32];
  grid_dependency_wait();
  grid_dependency_launch();
  const int row = static_cast<int>(blockIdx.y);
  const auto thread = static_cast<int>(threadIdx.x);
  if (params.seq_of_row != nullptr && params.seq_of_row[row] < 0) {
    if (blockIdx.x == 0 && thread == 0) {
      params.choices[row] = -1;
      params.finite[row] = 1;
    }
    return;
  }
  uint32_t magnitude = 0;
  const uint64_t own =
      scan_segment(params.logits + row * params.row_stride,
                   static_cast<int>(blockIdx.x) * kGreedySegment, params.vocab_size, magnitude);
  const uint64_t warp = warp_max(own);
  if ((thread & 31) == 0) warp_best[thread / 32] = warp;
  const bool bad = __syncthreads_or(magnitude >= 0x7f800000u) != 0;
  if (thread != 0) return;
  uint64_t best = 0;
  for (const uint64_t key : warp_best) best = key > best ? key : best;
  GreedyRow* state = static_cast<GreedyRow*>(params.workspace) + row;
  atomicMax(&state->best, static_cast<unsigned long long>(best));
  if (bad) atomicOr(&state->not_finite, 1);
  __threadfence();
  if (atomicAdd(&state->arrivals, 1) != static_cast<int>(gridDim.x) - 1) return;
  __threadfence();
  const bool fine = __ldcg(&state->not_finite) == 0;
  params.choices[row] = fine ? static_cast<int32_t>(ranked_key_index(__ldcg(&state->best))) : -1;
  params.finite[row] = fine;
  *state = {};
}

}  // namespace coppice::kernels
