// First kernel of the wide form: sorts the (token, slot) pairs by expert, cuts them into units,
// clears the counters, and copies x in the order in which the tensor cores take its inputs.
#pragma once

#include <cuda_bf16.h>

#include "kernels/common/grid_dependency.cuh"
#include "kernels/moe/moe_wide.h"

namespace coppice::kernels {

inline constexpr int kWideListThreads = 1024;

struct MoeWideKernelParams {
  MoeExpertsParams op;
  ExpertBlobShape shape13, shape2;
  uint32_t* counters;         // [counter_count], see WideCounters
  MoeWideUnit* units;         // [max_units]
  int32_t* pairs;             // [num_pairs] pair of each sorted position
  int32_t* positions;         // [num_pairs] sorted position of each pair that has an expert
  __nv_bfloat16* x;           // [num_tokens, hidden_size], groups in MMA order
  __nv_bfloat16* activation;  // [num_pairs, intermediate_size] sorted, groups in MMA order
  float* partial;             // [kWideBuffers, num_pairs, 256] sorted
  int counter_count;
  MoeWideConfig config;
};

struct WideCounters {
  uint32_t *num_units, *next_claim, *activations_done;
  uint32_t* unit_done;   // [max_units] items of gate and up that are written
  uint32_t* chunk_done;  // [chunks] units whose partial sums are written
  uint32_t* chunk_free;  // [chunks] blocks that have added up their tokens
};

__device__ inline int wide_chunks(const MoeWideKernelParams& p) {
  return (p.op.hidden_size + kWideOutputs - 1) / kWideOutputs;
}

__device__ inline WideCounters wide_counters(const MoeWideKernelParams& p) {
  WideCounters c;
  c.num_units = p.counters;
  c.next_claim = p.counters + 1;
  c.activations_done = p.counters + 2;
  c.unit_done = p.counters + 3;
  c.chunk_done = c.unit_done + p.config.max_units;
  c.chunk_free = c.chunk_done + wide_chunks(p);
  return c;
}

// Where input i of a group of 32 lies: the MMA's k order of moe_multiply.cuh, lane q's inputs 8 q
// to 8 q + 7 as pairs, pair j of all four lanes together.
__device__ inline int wide_input_position(int i) {
  return i % 8 / 2 * 8 + i / 8 * 2 + i % 2;
}

__device__ inline int wide_expert(const MoeExpertsParams& op, int pair) {
  const int expert = op.topk_ids[pair];
  return expert >= 0 && expert < op.num_experts ? expert : -1;
}

// Turns counts into the first position of each expert and writes the units; one warp.
__device__ inline void wide_units(const MoeWideKernelParams& p, int* counts) {
  const int lane = threadIdx.x;
  const int columns = p.config.columns;
  int pairs = 0, units = 0, active = 0;
  for (int first = 0; first < p.op.num_experts; first += 32) {
    const int expert = first + lane;
    const int count = expert < p.op.num_experts ? counts[expert] : 0;
    const int mine = (count + columns - 1) / columns;
    int pairs_up_to = count, units_up_to = mine;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other_pairs = __shfl_up_sync(~0u, pairs_up_to, distance);
      const int other_units = __shfl_up_sync(~0u, units_up_to, distance);
      if (lane >= distance) {
        pairs_up_to += other_pairs;
        units_up_to += other_units;
      }
    }
    const int begin = pairs + pairs_up_to - count;
    for (int i = 0; i < mine; ++i) {
      p.units[units + units_up_to - mine + i] = {
          begin + i * columns, static_cast<uint16_t>(expert),
          static_cast<uint16_t>(min(columns, count - i * columns))};
    }
    if (expert < p.op.num_experts) counts[expert] = begin;
    pairs += __shfl_sync(~0u, pairs_up_to, 31);
    units += __shfl_sync(~0u, units_up_to, 31);
    active += __popc(__ballot_sync(~0u, count > 0));
  }
  if (lane == 0) {
    *wide_counters(p).num_units = static_cast<uint32_t>(units);
    if (p.op.num_active_experts) *p.op.num_active_experts = active;
  }
}

// The order of the pairs of one expert is left to chance: no result depends on it.
__device__ inline void wide_sort(const MoeWideKernelParams& p, int* counts) {
  const int num_pairs = p.op.num_tokens * p.op.top_k;
  for (int i = threadIdx.x + 1; i < p.counter_count; i += kWideListThreads) p.counters[i] = 0;
  for (int i = threadIdx.x; i < p.op.num_experts; i += kWideListThreads) counts[i] = 0;
  __syncthreads();
#pragma unroll 8
  for (int pair = threadIdx.x; pair < num_pairs; pair += kWideListThreads) {
    const int expert = wide_expert(p.op, pair);
    if (expert >= 0) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) wide_units(p, counts);
  __syncthreads();
#pragma unroll 8
  for (int pair = threadIdx.x; pair < num_pairs; pair += kWideListThreads) {
    const int expert = wide_expert(p.op, pair);
    if (expert < 0) continue;
    const int position = atomicAdd(&counts[expert], 1);
    p.pairs[position] = pair;
    p.positions[pair] = position;
  }
}

// Copies x group by group: a 4 x 4 exchange of words (pairs of inputs).
__device__ inline void wide_arrange(const MoeWideKernelParams& p) {
  const int64_t groups = int64_t{p.op.num_tokens} * p.op.hidden_size / kQuantGroup;
  const int64_t stride = int64_t{gridDim.x - 1} * kWideListThreads;
  for (int64_t i = int64_t{blockIdx.x - 1} * kWideListThreads + threadIdx.x; i < groups;
       i += stride) {
    const uint4* from = static_cast<const uint4*>(p.op.x) + i * 4;
    uint4* to = reinterpret_cast<uint4*>(p.x) + i * 4;
    const uint4 a = from[0], b = from[1], c = from[2], d = from[3];
    to[0] = make_uint4(a.x, b.x, c.x, d.x);
    to[1] = make_uint4(a.y, b.y, c.y, d.y);
    to[2] = make_uint4(a.z, b.z, c.z, d.z);
    to[3] = make_uint4(a.w, b.w, c.w, d.w);
  }
}

__global__ void __launch_bounds__(kWideListThreads)
    moe_wide_list_kernel(const __grid_constant__ MoeWideKernelParams p) {
  extern __shared__ int wide_counts[];  // [num_experts]
  grid_dependency_wait();
  grid_dependency_launch();
  if (blockIdx.x == 0) {
    wide_sort(p, wide_counts);
  } else {
    wide_arrange(p);
  }
}

}  // namespace coppice::kernels
