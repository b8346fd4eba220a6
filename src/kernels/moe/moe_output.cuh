// What both forms of moe_experts do with finished sums: the activation between the two products,
// and the sum over a token's slots.
#pragma once

#include <cuda_bf16.h>

#include "kernels/moe/moe_experts.h"

namespace coppice::kernels {

__device__ inline __nv_bfloat16 swiglu(float gate, float up) {
  return __float2bfloat16_rn(__fmul_rn(__fdividef(gate, 1.0f + __expf(-gate)), up));
}

__device__ inline float4 load_shared_expert(const MoeExpertsParams& p, int64_t at) {
  if (p.shared_is_float) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(p.shared) + at);
  }
  const auto packed =
      *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(p.shared) + at);
  return make_float4(__uint_as_float(packed.x << 16), __uint_as_float(packed.x & 0xFFFF0000u),
                     __uint_as_float(packed.y << 16), __uint_as_float(packed.y & 0xFFFF0000u));
}

__device__ inline void store_combined(const MoeExpertsParams& p, int64_t at, float4 sum) {
  if (p.out_is_float) {
    *reinterpret_cast<float4*>(static_cast<float*>(p.out) + at) = sum;
    return;
  }
  const __nv_bfloat162 packed[2] = {__floats2bfloat162_rn(sum.x, sum.y),
                                    __floats2bfloat162_rn(sum.z, sum.w)};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.out) + at) =
      *reinterpret_cast<const uint2*>(packed);
}

// sum += weight * row, the next slot of a token.
__device__ inline void add_slot(float4& sum, float weight, const float4& row) {
  sum.x = __fmaf_rn(weight, row.x, sum.x);
  sum.y = __fmaf_rn(weight, row.y, sum.y);
  sum.z = __fmaf_rn(weight, row.z, sum.z);
  sum.w = __fmaf_rn(weight, row.w, sum.w);
}

__device__ inline void add_to(float4& sum, const float4& other) {
  sum.x = __fadd_rn(sum.x, other.x);
  sum.y = __fadd_rn(sum.y, other.y);
  sum.z = __fadd_rn(sum.z, other.z);
  sum.w = __fadd_rn(sum.w, other.w);
}

}  // namespace coppice::kernels
