#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/common/grid_dependency.cuh"
#include "kernels/norm/rms_norm.cuh"
#include "kernels/rope/gqa_rope.h"
#include "kernels/rope/rope.cuh"

namespace coppice::kernels {

constexpr int kGqaRopeWarps = 8;

// One head by one warp. Lane l holds pairs l, l + 32, ...; the sum of squares runs over a lane's
// pairs in order, then over lanes by warp_sum().
template <int kPairs>
__device__ __forceinline__ void rotate_head(const __nv_bfloat16* from, __nv_bfloat16* to,
                                            const float* norm, float eps, bool interleaved,
                                            const float* cos_sin) {
  constexpr int kHalf = kPairs * 32, kHeadDim = 2 * kHalf;
  const int lane = threadIdx.x % 32;
  float a[kPairs], b[kPairs], sum = 0;
#pragma unroll
  for (int i = 0; i < kPairs; i++) {
    const int pair = lane + 32 * i, ia = interleaved ? 2 * pair : pair;
    const int ib = interleaved ? 2 * pair + 1 : pair + kHalf;
    a[i] = __bfloat162float(from[ia]);
    b[i] = __bfloat162float(from[ib]);
    sum = __fmaf_rn(b[i], b[i], __fmaf_rn(a[i], a[i], sum));
  }
  const float scale = norm ? inverse_rms(warp_sum(sum), kHeadDim, eps) : 1.f;
#pragma unroll
  for (int i = 0; i < kPairs; i++) {
    const int pair = lane + 32 * i, ia = interleaved ? 2 * pair : pair;
    const int ib = interleaved ? 2 * pair + 1 : pair + kHalf;
    if (norm) {
      a[i] = __fmul_rn(__fmul_rn(a[i], scale), norm[ia]);
      b[i] = __fmul_rn(__fmul_rn(b[i], scale), norm[ib]);
    }
    const float2 r = rotate_pair(a[i], b[i], cos_sin[pair], cos_sin[kHalf + pair]);
    to[ia] = __float2bfloat16_rn(r.x);
    to[ib] = __float2bfloat16_rn(r.y);
  }
}

// One block per row; warps take its heads in turn: queries, then keys, then values.
template <int kPairs>
__global__ void __launch_bounds__(kGqaRopeWarps * 32) gqa_rope_kernel(GqaRopeParams p) {
  constexpr int kHeadDim = kPairs * 64;
  grid_dependency_launch();
  grid_dependency_wait();
  const int row = blockIdx.x, lane = threadIdx.x % 32;
  const int64_t slot = p.slots[row];
  // A padded row may have any negative position.
  const float* cos_sin = p.cos_sin + int64_t{max(p.positions[row], 0)} * kHeadDim;
  const int queries = p.q ? p.num_heads : 0;
  __nv_bfloat16* q = static_cast<__nv_bfloat16*>(p.q) + row * p.q_row_stride;
  const __nv_bfloat16* k = static_cast<const __nv_bfloat16*>(p.k) + row * p.k_row_stride;
  const __nv_bfloat16* v = static_cast<const __nv_bfloat16*>(p.v) + row * p.v_row_stride;
  const int64_t cache_row = slot * p.num_kv_heads * kHeadDim;
  const int written = slot < 0 ? 0 : 2 * p.num_kv_heads;
  for (int i = threadIdx.x / 32; i < queries + written; i += kGqaRopeWarps) {
    if (i < queries) {
      __nv_bfloat16* head = q + i * kHeadDim;
      rotate_head<kPairs>(head, head, p.q_norm, p.eps, p.interleaved, cos_sin);
    } else if (i < queries + p.num_kv_heads) {
      const int head = (i - queries) * kHeadDim;
      rotate_head<kPairs>(k + head, static_cast<__nv_bfloat16*>(p.k_cache) + cache_row + head,
                          p.k_norm, p.eps, p.interleaved, cos_sin);
    } else {
      const int head = (i - queries - p.num_kv_heads) * kHeadDim;
      __nv_bfloat16* to = static_cast<__nv_bfloat16*>(p.v_cache) + cache_row + head;
      for (int c = lane; c < kHeadDim; c += 32) to[c] = v[head + c];
    }
  }
}

}  // namespace coppice::kernels
