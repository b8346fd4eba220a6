// Sums the experts' rows of each token, the last step of moe_experts.h.
#pragma once

#include "kernels/moe/moe_experts.cuh"

namespace coppice::kernels {

inline constexpr int kCombineThreads = 128;  // four outputs each

// Turns four sums that lie side by side in `partial`, outputs g + 8 i of 32, into outputs 4 g + i:
// an exchange between the eight threads of a line.
__device__ inline float4 in_order(float4 sums) {
  constexpr int kPitch = kPartialLine + 8;  // lines of a warp in different banks
  __shared__ __align__(16) float lines[kCombineThreads / 8 * kPitch];
  float* line = lines + threadIdx.x / 8 * kPitch;
  const int g = threadIdx.x % 8;
  line[g] = sums.x;
  line[g + 8] = sums.y;
  line[g + 16] = sums.z;
  line[g + 24] = sums.w;
  __syncwarp(0xFFu << threadIdx.x % 32 / 8 * 8);
  return *reinterpret_cast<const float4*>(line + 4 * g);
}

// Adds a token's slots in slot order, then the shared expert; also clears the counters for the next
// call. Grid (outputs, tokens). kSlots >= top_k: the loads of all slots are in flight together.
template <int kSlots>
__global__ void __launch_bounds__(kCombineThreads)
    moe_combine_kernel(const __grid_constant__ MoeExpertsKernelParams p) {
  grid_dependency_launch();
  const int token = blockIdx.y, column = (blockIdx.x * kCombineThreads + threadIdx.x) * 4;
  const int64_t at = int64_t{token} * p.op.hidden_size + column;
  const bool inside = column < p.op.hidden_size;
  // The kernel before this one began after everything it reads was complete, so what it only read
  // may be read here before it ends.
  bool used[kSlots];
  float weight[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int pair = token * p.op.top_k + min(slot, p.op.top_k - 1);
    const int expert = p.op.topk_ids[pair];
    used[slot] = slot < p.op.top_k && expert >= 0 && expert < p.op.num_experts;
    weight[slot] = p.op.topk_weights[pair];
  }
  float4 shared_expert = make_float4(0, 0, 0, 0);
  if (p.op.shared && inside) shared_expert = load_shared_expert(p.op, at);

  grid_dependency_wait();
  for (int i = (blockIdx.y * gridDim.x + blockIdx.x) * kCombineThreads + threadIdx.x;
       i < p.config.max_units; i += gridDim.x * gridDim.y * kCombineThreads) {
    p.unit_counters[i] = 0;
  }
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *p.next_claim = 0;
  if (!inside) return;  // whole lines: the hidden size is a multiple of 32
  const float* rows = p.partial + int64_t{token} * p.op.top_k * p.op.hidden_size + column;
  float4 row[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (used[slot]) {
      row[slot] = __ldcs(reinterpret_cast<const float4*>(rows + int64_t{slot} * p.op.hidden_size));
    }
  }
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (used[slot]) add_slot(sum, weight[slot], row[slot]);
  }
  sum = in_order(sum);
  if (p.op.shared) add_to(sum, shared_expert);
  store_combined(p.op, at, sum);
}

}  // namespace coppice::kernels
