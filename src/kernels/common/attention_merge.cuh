// Merging partial softmax results, and the exp2 that attention kernels share.
#pragma once

#include <cuda_runtime.h>

namespace coppice::kernels {

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Scores enter exp2, so the scale carries log2(e).
__device__ __forceinline__ float log2_scale(float softmax_scale) {
  return __fmul_rn(softmax_scale, 1.4426950408889634f);
}

// Two partial results with maxima m of raw scores, sums l and normalised values merge into
// left * value + right * value.
struct AttentionMerge {
  float m, l;         // of the result
  float left, right;  // weights of the values; exactly 1 and 0 if a side is empty (l = 0)
};

__device__ __forceinline__ AttentionMerge attention_merge(float m_left, float l_left, float m_right,
                                                          float l_right, float scale) {
  AttentionMerge r;
  r.m = fmaxf(m_left, m_right);
  const float base = __fmul_rn(r.m, scale);
  const float a =
      l_left > 0 ? __fmul_rn(l_left, exp2_approx(__fsub_rn(__fmul_rn(m_left, scale), base))) : 0.f;
  const float b = l_right > 0
                      ? __fmul_rn(l_right, exp2_approx(__fsub_rn(__fmul_rn(m_right, scale), base)))
                      : 0.f;
  r.l = __fadd_rn(a, b);
  r.left = a > 0 ? __fdiv_rn(a, r.l) : 0.f;
  r.right = b > 0 ? __fdiv_rn(b, r.l) : 0.f;
  return r;
}

// A side of weight 0 leaves the other's value untouched, the sign of a zero included.
__device__ __forceinline__ float merge_values(const AttentionMerge& merge, float left,
                                              float right) {
  if (merge.right == 0.f) return left;
  if (merge.left == 0.f) return right;
  return __fmaf_rn(merge.left, left, __fmul_rn(merge.right, right));
}

}  // namespace coppice::kernels
