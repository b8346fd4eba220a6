// Device side of moe_prepare.h. The first blocks route a token each; every other block multiplies
// 32 outputs of `down` by up to 32 tokens, with its weights on their way before the previous kernel
// has finished.
#pragma once

#include <cuda_bf16.h>

#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/moe/moe_output.cuh"
#include "kernels/moe/moe_prepare.h"
#include "kernels/moe/moe_route.cuh"

namespace coppice::kernels {

inline constexpr int kSharedOutputs = 32, kSharedTokens = 32;  // of a block
inline constexpr int kSharedPitch = 16;  // bytes that keep rows off each other's banks

struct MoePrepareKernelParams {
  MoeRouteParams route;
  MoeSharedParams shared;
};

// Rows of `down` and of activations in shared memory: [kSharedOutputs + kSharedTokens, pitch].
__host__ __device__ constexpr int shared_row_bytes(int intermediate_size) {
  return intermediate_size * 2 + kSharedPitch;
}

__device__ inline void copy_shared_down(const MoeSharedParams& p, uint32_t to, int first_output) {
  const int pieces = p.intermediate_size / 8, pitch = shared_row_bytes(p.intermediate_size);
  const auto* from = static_cast<const __nv_bfloat16*>(p.down);
#pragma unroll 1
  for (int i = threadIdx.x; i < kSharedOutputs * pieces; i += kRouteThreads) {
    const int row = i / pieces, piece = i - row * pieces;
    copy_async_16(to + row * pitch + piece * 16,
                  from + int64_t{first_output + row} * p.intermediate_size + piece * 8, true);
  }
}

// silu(gate) * up of the block's tokens, rounded as the unfused op rounds it.
__device__ inline void shared_activations(const MoeSharedParams& p, uint8_t* to, int first_token,
                                          int count) {
  const int size = p.intermediate_size, pieces = size / 8, pitch = shared_row_bytes(size);
#pragma unroll 1
  for (int i = threadIdx.x; i < count * pieces; i += kRouteThreads) {
    const int token = i / pieces, piece = i - token * pieces;
    const auto* gate = static_cast<const __nv_bfloat16*>(p.gate_up) +
                       int64_t{first_token + token} * 2 * size + piece * 8;
    const uint4 g = *reinterpret_cast<const uint4*>(gate);
    const uint4 u = *reinterpret_cast<const uint4*>(gate + size);
    const uint32_t gates[4] = {g.x, g.y, g.z, g.w}, ups[4] = {u.x, u.y, u.z, u.w};
    uint32_t pair[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const __nv_bfloat162 both = __halves2bfloat162(
          swiglu(__uint_as_float(gates[k] << 16), __uint_as_float(ups[k] << 16)),
          swiglu(__uint_as_float(gates[k] & 0xFFFF0000u), __uint_as_float(ups[k] & 0xFFFF0000u)));
      pair[k] = *reinterpret_cast<const uint32_t*>(&both);
    }
    *reinterpret_cast<uint4*>(to + token * pitch + piece * 16) =
        make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
}

// Rows g and g + 8 of 16 outputs at `weights` by eight tokens at `inputs`: one chain of products
// from zero along the inputs.
__device__ inline float4 multiply_shared(uint32_t weights, uint32_t inputs, int size) {
  const int lane = threadIdx.x % 32, pitch = shared_row_bytes(size);
  // Matrices: rows 0-7 and 8-15 at k, then both at k + 8; tokens at k, k + 8, k + 16, k + 24.
  weights += lane % 16 * pitch + lane / 16 * 16;
  inputs += lane % 8 * pitch + lane / 8 * 16;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 2
  for (int k = 0; k < size * 2; k += 64) {  // bytes of 32 inputs
    uint32_t a[4], b[4], next[4];
    ldmatrix_x4(a, weights + k);
    ldmatrix_x4(next, weights + k + 32);
    ldmatrix_x4(b, inputs + k);
    sum = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], b[0], b[1], sum);
    sum = mma_m16n8k16_bf16(next[0], next[1], next[2], next[3], b[2], b[3], sum);
  }
  return sum;
}

// One block's outputs and tokens of the shared expert.
__device__ inline void shared_block(const MoeSharedParams& p, int num_tokens, int block,
                                    uint8_t* memory) {
  const int tiles = p.hidden_size / kSharedOutputs;
  const int first_output = block % tiles * kSharedOutputs;
  const int first_token = block / tiles * kSharedTokens;
  const int count = min(num_tokens - first_token, kSharedTokens);
  const int pitch = shared_row_bytes(p.intermediate_size);
  copy_shared_down(p, shared_address(memory), first_output);
  grid_dependency_wait();
  uint8_t* activations = memory + kSharedOutputs * pitch;
  shared_activations(p, activations, first_token, count);
  copy_async_wait_all();
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2;
  for (int token = warp / 2 * 8; token < count; token += 16) {
    const float4 sum =
        multiply_shared(shared_address(memory + half * 16 * pitch),
                        shared_address(activations + token * pitch), p.intermediate_size);
    const int column = token + lane % 4 * 2;
    auto* out = static_cast<__nv_bfloat16*>(p.out) + int64_t{first_token + column} * p.hidden_size +
                first_output + half * 16 + lane / 4;
    if (column < count) {
      out[0] = __float2bfloat16_rn(sum.x);
      out[8] = __float2bfloat16_rn(sum.z);
    }
    if (column + 1 < count) {
      out[p.hidden_size] = __float2bfloat16_rn(sum.y);
      out[p.hidden_size + 8] = __float2bfloat16_rn(sum.w);
    }
  }
}

template <int kPerThread>
__global__ void __launch_bounds__(kRouteThreads)
    moe_prepare_kernel(const __grid_constant__ MoePrepareKernelParams p) {
  extern __shared__ __align__(16) uint8_t prepare_shared[];
  grid_dependency_launch();
  const int block = static_cast<int>(blockIdx.x);
  if (block < p.route.num_tokens) {
    float bias[kPerThread];
    route_bias(p.route, bias);
    grid_dependency_wait();
    route_token<kPerThread>(p.route, block, bias, *reinterpret_cast<RouteShared*>(prepare_shared));
  } else {
    shared_block(p.shared, p.route.num_tokens, block - p.route.num_tokens, prepare_shared);
  }
}

}  // namespace coppice::kernels
