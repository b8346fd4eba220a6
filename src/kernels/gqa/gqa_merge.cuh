// Merging: the parts of a chunk in a tree, and the chunks of a row in order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/attention_merge.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/gqa/gqa_attention.h"
#include "kernels/gqa/gqa_attention_config.h"
#include "kernels/gqa/gqa_groups.cuh"
#include "kernels/gqa/gqa_step.cuh"

namespace coppice::kernels {

// A block's part of a chunk: normalised values and (maximum, sum) of its rows.
template <int kHeadDim>
struct GqaPart {
  float* o;
  float2* stats;
};

template <int kHeadDim, int kColumns>
__device__ __forceinline__ void gqa_store_part(const GqaState<kColumns>& st, const GqaWarp& warp,
                                               const GqaPart<kHeadDim>& to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = warp.tile * kGqaTileRows + lane / 4 + 8 * h;
    const float inverse = st.l[h] > 0 ? __frcp_rn(st.l[h]) : 0.f;
    if (warp.first_piece == 0 && lane % 4 == 0) to.stats[row] = make_float2(st.m[h], st.l[h]);
    float* o = to.o + row * gqa_part_pitch(kHeadDim) + warp.first_piece * 8 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kColumns / 8; n++)
      *reinterpret_cast<float2*>(o + 8 * n) = make_float2(
          __fmul_rn(st.o[4 * n + 2 * h], inverse), __fmul_rn(st.o[4 * n + 2 * h + 1], inverse));
  }
}

__device__ __forceinline__ float4 merge_values(const AttentionMerge& merge, float4 left,
                                               float4 right) {
  return make_float4(merge_values(merge, left.x, right.x), merge_values(merge, left.y, right.y),
                     merge_values(merge, left.z, right.z), merge_values(merge, left.w, right.w));
}

// Four values of one row, and the row's maximum and sum.
struct GqaMerged {
  float4 o;
  float m, l;
};

__device__ __forceinline__ GqaMerged gqa_merge(const GqaMerged& a, const GqaMerged& b,
                                               float scale) {
  const AttentionMerge merge = attention_merge(a.m, a.l, b.m, b.l, scale);
  return {merge_values(merge, a.o, b.o), merge.m, merge.l};
}

// Four values of row `r` from `column` on: the parts of a cluster's blocks, merged in a tree.
template <int kHeadDim>
__device__ __forceinline__ void gqa_load_of_cluster(const GqaPart<kHeadDim>& mine, int r,
                                                    int column, GqaMerged (&from)[kGqaParts]) {
  const uint32_t o = shared_address(mine.o + r * gqa_part_pitch(kHeadDim) + column);
  const uint32_t stats = shared_address(mine.stats + r);
#pragma unroll
  for (int b = 0; b < kGqaParts; b++) {
    from[b].o = cluster_load(cluster_address(o, b));
    const float2 m_and_l = cluster_load_pair(cluster_address(stats, b));
    from[b].m = m_and_l.x, from[b].l = m_and_l.y;
  }
}

template <int kHeadDim>
__device__ __forceinline__ GqaMerged gqa_part_of_block(const GqaPart<kHeadDim>& mine, int r,
                                                       int column) {
  const float* o = mine.o + r * gqa_part_pitch(kHeadDim) + column;
  return {*reinterpret_cast<const float4*>(o), mine.stats[r].x, mine.stats[r].y};
}

__device__ __forceinline__ void gqa_store_output(const GqaAttentionParams& p, int64_t at,
                                                 float4 o) {
  const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(o.x, o.y),
                                   __floats2bfloat162_rn(o.z, o.w)};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.out) + at) =
      *reinterpret_cast<const uint2*>(pairs);
}

// Where results of chunks lie between the kernels: values of (token, head, chunk), then statistics.
template <int kHeadDim>
struct GqaWorkspace {
  float* o;
  float2* stats;
};

template <int kHeadDim>
__device__ __forceinline__ GqaWorkspace<kHeadDim> gqa_workspace(const GqaAttentionParams& p,
                                                                int max_chunks) {
  GqaWorkspace<kHeadDim> w;
  w.o = static_cast<float*>(p.workspace);
  w.stats =
      reinterpret_cast<float2*>(w.o + int64_t{p.num_rows} * p.num_heads * max_chunks * kHeadDim);
  return w;
}

template <int kHeadDim>
__device__ __forceinline__ void gqa_store_chunk(const GqaWorkspace<kHeadDim>& to, int64_t at,
                                                int column, const GqaMerged& merged) {
  __stcg(reinterpret_cast<float4*>(to.o + at * kHeadDim + column), merged.o);
  if (column == 0) __stcg(to.stats + at, make_float2(merged.m, merged.l));
}

// Merges the chunks of a row in order, one warp a (token, head) pair. All loads of a batch of
// chunks are in flight together, and only the sum of a chunk waits for the one before.
template <int kHeadDim>
__global__ void __launch_bounds__(128) gqa_combine_kernel(GqaAttentionParams p, int max_chunks) {
  constexpr int kBatch = 16, kValues = kHeadDim / 32;
  using Vector = std::conditional_t<kValues == 4, float4, float2>;
  grid_dependency_launch();
  grid_dependency_wait();
  const int row_head = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int row = row_head / p.num_heads;
  if (row >= p.num_rows) return;
  int begin, end;
  gqa_range(p, row, begin, end);
  if (p.seq_of_row[row] < 0) return;
  const float scale = log2_scale(p.softmax_scale);
  const GqaWorkspace<kHeadDim> workspace = gqa_workspace<kHeadDim>(p, max_chunks);
  const int last = begin < end ? (end - 1) / kGqaChunkPositions + 1 : 0;
  float m = -INFINITY, l = 0, o[kValues] = {};
  for (int first = gqa_first_chunk(begin); first < last; first += kBatch) {
    const int count = min(kBatch, last - first);
    const int64_t at = int64_t{row_head} * max_chunks + first;
    float2 stats = make_float2(-INFINITY, 0);
    if (lane < count) stats = __ldcg(workspace.stats + at + lane);
    Vector values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; i++)
      if (i < count)
        values[i] =
            __ldcg(reinterpret_cast<const Vector*>(workspace.o + (at + i) * kHeadDim) + lane);
    // As attention_merge: of lane i, the merge of chunk i with all before it.
    float top = stats.x;
#pragma unroll
    for (int d = 1; d < kBatch; d *= 2) {
      const float other = __shfl_up_sync(~0u, top, d);
      if (lane >= d) top = fmaxf(top, other);
    }
    top = fmaxf(top, m);
    float before = __shfl_up_sync(~0u, top, 1);
    if (lane == 0) before = m;
    const float base = __fmul_rn(top, scale);
    const float decay = exp2_approx(__fsub_rn(__fmul_rn(before, scale), base));
    const float b =
        stats.y > 0 ? __fmul_rn(stats.y, exp2_approx(__fsub_rn(__fmul_rn(stats.x, scale), base)))
                    : 0.f;
    float a = 0, sum = 1;
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const float left = l > 0 ? __fmul_rn(l, __shfl_sync(~0u, decay, i)) : 0.f;
      const float both = __fadd_rn(left, __shfl_sync(~0u, b, i));
      if (i < count) l = both;
      if (lane == i) a = left, sum = both;
    }
    AttentionMerge merge;
    const float left = a > 0 ? __fdiv_rn(a, sum) : 0.f, right = b > 0 ? __fdiv_rn(b, sum) : 0.f;
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      merge.left = __shfl_sync(~0u, left, i), merge.right = __shfl_sync(~0u, right, i);
      if (i < count) {
        const float* v = reinterpret_cast<const float*>(&values[i]);
#pragma unroll
        for (int c = 0; c < kValues; c++) o[c] = merge_values(merge, o[c], v[c]);
      }
    }
    m = __shfl_sync(~0u, top, count - 1);
  }
  __nv_bfloat16* out =
      static_cast<__nv_bfloat16*>(p.out) + int64_t{row_head} * kHeadDim + lane * kValues;
#pragma unroll
  for (int c = 0; c < kValues; c += 2)
    *reinterpret_cast<__nv_bfloat162*>(out + c) = __floats2bfloat162_rn(o[c], o[c + 1]);
}

}  // namespace coppice::kernels
