// Device side of the RMS norm; the row reduction is shared with kernels that norm on the way.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/grid_dependency.cuh"
#include "kernels/norm/rms_norm.h"

namespace coppice::kernels {

struct Bf16x8 {
  __nv_bfloat162 v[4];
  __device__ float get(int i) const {
    return i % 2 ? __high2float(v[i / 2]) : __low2float(v[i / 2]);
  }
};

__device__ __forceinline__ Bf16x8 load_bf16x8(const __nv_bfloat16* p) {
  const uint4 raw = *reinterpret_cast<const uint4*>(p);
  return *reinterpret_cast<const Bf16x8*>(&raw);
}

__device__ __forceinline__ void store_bf16x8(__nv_bfloat16* p, const Bf16x8& x) {
  *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&x);
}

// Sum of squares of eight values added to `sum`, in order.
__device__ __forceinline__ float add_squares(float sum, const Bf16x8& x) {
#pragma unroll
  for (int i = 0; i < 8; i++) sum = __fmaf_rn(x.get(i), x.get(i), sum);
  return sum;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, d));
  return x;
}

// 1 / sqrt(mean + eps) from the sum of squares.
__device__ __forceinline__ float inverse_rms(float sum, int hidden_size, float eps) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(hidden_size)), eps));
}

// x * scale * weight, rounded once.
__device__ __forceinline__ Bf16x8 scale_bf16x8(const Bf16x8& x, float scale,
                                               const float (&weight)[8]) {
  Bf16x8 y;
#pragma unroll
  for (int i = 0; i < 4; i++)
    y.v[i] =
        __floats2bfloat162_rn(__fmul_rn(__fmul_rn(x.get(2 * i), scale), weight[2 * i]),
                              __fmul_rn(__fmul_rn(x.get(2 * i + 1), scale), weight[2 * i + 1]));
  return y;
}

__device__ __forceinline__ void load_f32x8(float (&w)[8], const float* p) {
  const float4 a = *reinterpret_cast<const float4*>(p);
  const float4 b = *reinterpret_cast<const float4*>(p + 4);
  w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
}

// x + d, each rounded to bf16.
__device__ __forceinline__ Bf16x8 add_bf16x8(const Bf16x8& x, const Bf16x8& d) {
  Bf16x8 y;
#pragma unroll
  for (int i = 0; i < 4; i++)
    y.v[i] = __floats2bfloat162_rn(__fadd_rn(x.get(2 * i), d.get(2 * i)),
                                   __fadd_rn(x.get(2 * i + 1), d.get(2 * i + 1)));
  return y;
}

// This thread's weights: constants, to be read before the wait for the kernel before.
template <int kVectors>
__device__ __forceinline__ void load_weights(const RmsNormParams& p, float (&weight)[kVectors][8]) {
#pragma unroll
  for (int i = 0; i < kVectors; i++) {
    const int v = threadIdx.x + i * blockDim.x;
    if (v < p.hidden_size / 8) load_f32x8(weight[i], p.weight + v * 8);
  }
}

// The block norms a row whose vector v is value_of(v). kVectors 16-byte vectors a thread, kept in
// registers.
template <int kVectors, typename ValueOf>
__device__ __forceinline__ void norm_row(const RmsNormParams& p, int row,
                                         const float (&weight)[kVectors][8], float (&warp_sums)[32],
                                         const ValueOf& value_of) {
  const int vectors = p.hidden_size / 8;
  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) + row * p.out_row_stride;
  Bf16x8 value[kVectors];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; i++) {
    const int v = threadIdx.x + i * blockDim.x;
    if (v >= vectors) continue;
    value[i] = value_of(v);
    sum = add_squares(sum, value[i]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  sum = warp_sum(lane < static_cast<int>(blockDim.x) / 32 ? warp_sums[lane] : 0.f);
  const float scale = inverse_rms(sum, p.hidden_size, p.eps);
#pragma unroll
  for (int i = 0; i < kVectors; i++) {
    const int v = threadIdx.x + i * blockDim.x;
    if (v < vectors) store_bf16x8(out + v * 8, scale_bf16x8(value[i], scale, weight[i]));
  }
}

// One block per row.
template <int kVectors>
__global__ void __launch_bounds__(1024) rms_norm_kernel(RmsNormParams p) {
  __shared__ float warp_sums[32];
  const int row = blockIdx.x;
  float weight[kVectors][8];
  load_weights(p, weight);
  grid_dependency_launch();
  grid_dependency_wait();
  const __nv_bfloat16* x = static_cast<const __nv_bfloat16*>(p.x) + row * p.x_row_stride;
  const __nv_bfloat16* delta =
      static_cast<const __nv_bfloat16*>(p.delta) + row * p.delta_row_stride;
  __nv_bfloat16* residual = static_cast<__nv_bfloat16*>(p.residual) + row * p.residual_row_stride;
  norm_row(p, row, weight, warp_sums, [&](int v) {
    Bf16x8 value = load_bf16x8(x + v * 8);
    if (p.delta) {
      value = add_bf16x8(value, load_bf16x8(delta + v * 8));
      store_bf16x8(residual + v * 8, value);
    }
    return value;
  });
}

}  // namespace coppice::kernels
