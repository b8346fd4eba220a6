// Rotation of pairs; the order of operations is fixed.
#pragma once

#include <cuda_runtime.h>

#include "kernels/norm/rms_norm.cuh"

namespace coppice::kernels {

__device__ __forceinline__ float2 rotate_pair(float a, float b, float cosine, float sine) {
  return make_float2(__fmaf_rn(a, cosine, -__fmul_rn(b, sine)),
                     __fmaf_rn(a, sine, __fmul_rn(b, cosine)));
}

// Four interleaved pairs, in fp32, rounded once. `cosine` and `sine` point at the first pair's.
__device__ __forceinline__ Bf16x8 rotate_bf16x8(const Bf16x8& x, const float* cosine,
                                                const float* sine) {
  Bf16x8 y;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 r = rotate_pair(x.get(2 * i), x.get(2 * i + 1), cosine[i], sine[i]);
    y.v[i] = __floats2bfloat162_rn(r.x, r.y);
  }
  return y;
}

}  // namespace coppice::kernels
