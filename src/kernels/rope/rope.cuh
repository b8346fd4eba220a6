// Rotation of one pair; the order of operations is fixed.
#pragma once

#include <cuda_runtime.h>

namespace coppice::kernels {

__device__ __forceinline__ float2 rotate_pair(float a, float b, float cosine, float sine) {
  return make_float2(__fmaf_rn(a, cosine, -__fmul_rn(b, sine)),
                     __fmaf_rn(a, sine, __fmul_rn(b, cosine)));
}

}  // namespace coppice::kernels
