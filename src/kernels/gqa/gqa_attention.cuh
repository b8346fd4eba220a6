// Grouped-query attention with mma.sync. A block takes one tile: up to 16 (token, head) pairs that
// share a kv head and a sequence. A chunk of 512 positions is eight steps of 64 keys; warp w runs
// steps w and w + 4 from zero, the four results merge in a tree, chunks merge in order. All of it
// follows from absolute positions, so a row's bits depend on nothing else.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/attention_merge.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/gqa/gqa_attention.h"
#include "kernels/gqa/gqa_attention_config.h"

namespace coppice::kernels {

constexpr int kGqaWarps = 4;
constexpr int kGqaStep = 64;

// Partial results of one tile: 16 rows of head_dim normalised values, then (maximum, sum) pairs.
template <int kHeadDim>
struct GqaPartial {
  float o[kGqaTileRows][kHeadDim];
  float2 stats[kGqaTileRows];
};

template <int kHeadDim>
struct GqaShared {
  __nv_bfloat16 keys[kGqaWarps][kGqaStep * kHeadDim];
  __nv_bfloat16 values[kGqaWarps][kGqaStep * kHeadDim];
  GqaPartial<kHeadDim> partial[kGqaWarps];
  GqaPartial<kHeadDim> total;
  int32_t slots[kGqaWarps][kGqaStep];
};

// What a block works on, and how a thread's two rows (lane / 4 and lane / 4 + 8) see keys.
struct GqaTile {
  int first_row, num_nodes, seq, kv_head;
  int padded_group, group;
  int shared_end;  // positions below are read through the table by all tokens of the tile
  int node[2];     // token of each row; num_nodes or more: none
  int begin[2], end[2];
};

// The position range a row sees.
__device__ __forceinline__ void gqa_range(const GqaAttentionParams& p, int row, int& begin,
                                          int& end) {
  begin = 0;
  end = p.kv_len[row] + p.path_len[row];
  if (p.sliding_window > 0) begin = max(0, p.positions[row] - p.sliding_window + 1);
  if (p.causal) end = min(end, p.positions[row] + 1);
}

// The tile that starts at `row`, or num_nodes = 0 if an earlier row's tile covers it. Whole warps.
__device__ __forceinline__ GqaTile gqa_tile(const GqaAttentionParams& p, int row,
                                            int padded_group) {
  GqaTile t = {};
  const int lane = threadIdx.x % 32;
  t.seq = p.seq_of_row[row];
  if (t.seq < 0) return t;
  int before = 0;  // rows of the same sequence in front
  for (int at = row - 1; at >= 0; at -= 32) {
    const bool same = at - lane >= 0 && p.seq_of_row[at - lane] == t.seq;
    const unsigned differs = ~__ballot_sync(~0u, same);
    before += differs ? __ffs(differs) - 1 : 32;
    if (differs) break;
  }
  const int capacity = kGqaTileRows / padded_group;
  if (before % capacity != 0) return t;
  t.num_nodes = 1;
  while (t.num_nodes < capacity && row + t.num_nodes < p.num_rows &&
         p.seq_of_row[row + t.num_nodes] == t.seq)
    t.num_nodes++;
  t.first_row = row;
  t.padded_group = padded_group;
  t.group = p.num_heads / p.num_kv_heads;
  t.kv_head = blockIdx.y;
  t.shared_end = 1 << 30;
  for (int n = 0; n < t.num_nodes; n++) t.shared_end = min(t.shared_end, p.kv_len[row + n]);
  for (int h = 0; h < 2; h++) {
    const int r = lane / 4 + 8 * h;
    t.node[h] = r / padded_group;
    t.begin[h] = t.end[h] = 0;
    if (t.node[h] < t.num_nodes && r % padded_group < t.group)
      gqa_range(p, row + t.node[h], t.begin[h], t.end[h]);
  }
  return t;
}

// Running softmax of a warp's rows; o as in the fragments of mma.m16n8k16.
template <int kHeadDim>
struct GqaState {
  float o[kHeadDim / 2];
  float m[2], l[2];
};

// Query fragments of mma.m16n8k16, four registers per 16 dimensions.
template <int kHeadDim>
__device__ __forceinline__ void gqa_load_queries(const GqaAttentionParams& p, const GqaTile& t,
                                                 uint32_t (&q)[kHeadDim / 4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int head = (lane / 4 + 8 * h) % t.padded_group;
    const bool valid = t.node[h] < t.num_nodes && head < t.group;
    const __nv_bfloat16* from = static_cast<const __nv_bfloat16*>(p.q) +
                                (t.first_row + t.node[h]) * p.q_row_stride +
                                (t.kv_head * t.group + head) * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; i++)
      q[i / 2 * 4 + i % 2 * 2 + h] = valid ? *reinterpret_cast<const uint32_t*>(from + 8 * i) : 0u;
  }
}

// Cache slots of the step's keys as token `node` sees them; -1 where it sees none.
__device__ __forceinline__ void gqa_find_slots(const GqaAttentionParams& p, const GqaTile& t,
                                               int node, int step, int32_t* slots) {
  const int lane = threadIdx.x % 32, row = t.first_row + node;
  const int kv_len = p.kv_len[row], length = kv_len + p.path_len[row];
  __syncwarp();
#pragma unroll
  for (int i = lane; i < kGqaStep; i += 32) {
    const int position = step * kGqaStep + i;
    int slot = -1;
    if (position < kv_len)
      slot = p.block_tables[int64_t{t.seq} * p.max_blocks + step] * kGqaStep + i;
    else if (position < length)
      slot = p.path[int64_t{row} * p.max_path + position - kv_len];
    slots[i] = slot;
  }
  __syncwarp();
}

// Starts the copy of the slots' rows of one kv head into a swizzled tile; missing keys become zero.
template <int kHeadDim>
__device__ __forceinline__ void gqa_start_copy(const void* cache, const GqaAttentionParams& p,
                                               const GqaTile& t, const int32_t* slots,
                                               uint32_t tile) {
  constexpr int kChunks = kHeadDim / 8;
  const int lane = threadIdx.x % 32;
#pragma unroll 8
  for (int i = lane; i < kGqaStep * kChunks; i += 32) {
    const int key = i / kChunks, chunk = i % kChunks, slot = slots[key];
    const __nv_bfloat16* from = static_cast<const __nv_bfloat16*>(cache) +
                                (int64_t{max(slot, 0)} * p.num_kv_heads + t.kv_head) * kHeadDim +
                                chunk * 8;
    copy_async_16(tile + (key * kChunks + (chunk ^ (key & 7))) * 16, from, slot >= 0);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's copies are in flight, then for the warp's.
template <int kPending>
__device__ __forceinline__ void gqa_wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  __syncwarp();
}

// s [16, 64] = q k^T; missing keys count as zero.
template <int kHeadDim>
__device__ __forceinline__ void gqa_scores(const uint32_t (&q)[kHeadDim / 4], uint32_t keys,
                                           float (&s)[32]) {
  constexpr int kChunks = kHeadDim / 8;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 8; n++) {
    const int key = 8 * n + lane % 8;
    float4 d = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; i++) {
      uint32_t k[4];
      ldmatrix_x4(k, keys + (key * kChunks + ((4 * i + lane / 8) ^ (key & 7))) * 16);
      const uint32_t* a = q + 8 * i;
      d = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], k[0], k[1], d);
      d = mma_m16n8k16_bf16(a[4], a[5], a[6], a[7], k[2], k[3], d);
    }
    s[4 * n] = d.x, s[4 * n + 1] = d.y, s[4 * n + 2] = d.z, s[4 * n + 3] = d.w;
  }
}

// Masked softmax step: updates the state, leaves the weights as operand fragments.
template <int kHeadDim>
__device__ __forceinline__ void gqa_softmax(GqaState<kHeadDim>& st, const GqaTile& t, int step,
                                            float scale, float (&s)[32], uint32_t (&w)[16]) {
  const int lane = threadIdx.x % 32;
  float alpha[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < 16; i++) {
      float& x = s[i / 2 * 4 + 2 * h + i % 2];
      const int position = step * kGqaStep + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (position < t.begin[h] || position >= t.end[h]) x = -INFINITY;
      top = fmaxf(top, x);
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float m = fmaxf(st.m[h], top);
    const float base = m == -INFINITY ? 0.f : __fmul_rn(m, scale);
    alpha[h] = m == -INFINITY ? 1.f : exp2_approx(__fsub_rn(__fmul_rn(st.m[h], scale), base));
    st.m[h] = m;
    st.l[h] = __fmul_rn(st.l[h], alpha[h]);
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(exp2_approx(__fmaf_rn(s[4 * n + 2 * h], scale, -base)),
                                exp2_approx(__fmaf_rn(s[4 * n + 2 * h + 1], scale, -base)));
      w[2 * n + h] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; i++) st.o[i] *= alpha[i / 2 % 2];
  // The sum of the rounded weights, as one more value column that is 1 for every key.
  constexpr uint32_t kOnes = 0x3F803F80;
  float4 sum = make_float4(st.l[0], st.l[0], st.l[1], st.l[1]);
#pragma unroll
  for (int g = 0; g < 4; g++)
    sum = mma_m16n8k16_bf16(w[4 * g], w[4 * g + 1], w[4 * g + 2], w[4 * g + 3], kOnes, kOnes, sum);
  st.l[0] = sum.x, st.l[1] = sum.z;
}

// o += weights values, for the rows of `mask` (0 or all bits per row of the thread).
template <int kHeadDim>
__device__ __forceinline__ void gqa_add_values(GqaState<kHeadDim>& st, const uint32_t (&w)[16],
                                               uint32_t mask0, uint32_t mask1, uint32_t values) {
  constexpr int kChunks = kHeadDim / 8;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int g = 0; g < 4; g++) {
    const int key = 16 * g + lane % 16;
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; n++) {
      uint32_t b[4];
      ldmatrix_x4_transposed(b, values + (key * kChunks + ((2 * n + lane / 16) ^ (key & 7))) * 16);
      float* o = st.o + 8 * n;
      float4 d =
          mma_m16n8k16_bf16(w[4 * g] & mask0, w[4 * g + 1] & mask1, w[4 * g + 2] & mask0,
                            w[4 * g + 3] & mask1, b[0], b[1], make_float4(o[0], o[1], o[2], o[3]));
      o[0] = d.x, o[1] = d.y, o[2] = d.z, o[3] = d.w;
      d = mma_m16n8k16_bf16(w[4 * g] & mask0, w[4 * g + 1] & mask1, w[4 * g + 2] & mask0,
                            w[4 * g + 3] & mask1, b[2], b[3], make_float4(o[4], o[5], o[6], o[7]));
      o[4] = d.x, o[5] = d.y, o[6] = d.z, o[7] = d.w;
    }
  }
}

// A step in which tokens read different keys: each token's are gathered by position in turn and
// applied to its rows alone.
template <int kHeadDim>
__device__ __forceinline__ void gqa_tail_step(const GqaAttentionParams& p, const GqaTile& t,
                                              GqaState<kHeadDim>& st,
                                              const uint32_t (&q)[kHeadDim / 4], int step,
                                              float scale, int32_t* slots, uint32_t keys,
                                              uint32_t values) {
  float s[32];
  uint32_t w[16];
  for (int node = 0; node < t.num_nodes; node++) {
    gqa_find_slots(p, t, node, step, slots);
    gqa_start_copy<kHeadDim>(p.k_cache, p, t, slots, keys);
    gqa_wait_copies<0>();
    float mine[32];
    gqa_scores<kHeadDim>(q, keys, mine);
#pragma unroll
    for (int i = 0; i < 32; i++)
      if (t.node[i / 2 % 2] == node) s[i] = mine[i];
  }
  gqa_softmax<kHeadDim>(st, t, step, scale, s, w);
  for (int node = 0; node < t.num_nodes; node++) {
    gqa_find_slots(p, t, node, step, slots);
    gqa_start_copy<kHeadDim>(p.v_cache, p, t, slots, values);
    gqa_wait_copies<0>();
    gqa_add_values<kHeadDim>(st, w, t.node[0] == node ? ~0u : 0u, t.node[1] == node ? ~0u : 0u,
                             values);
    __syncwarp();
  }
}

// A warp's steps of one chunk, in order. The next step's copies run under this one's arithmetic.
template <int kHeadDim>
__device__ __forceinline__ void gqa_steps(const GqaAttentionParams& p, const GqaTile& t,
                                          GqaState<kHeadDim>& st, const uint32_t (&q)[kHeadDim / 4],
                                          int first, int last, float scale, int32_t* slots,
                                          uint32_t keys, uint32_t values) {
  const int shared_steps = min(last, t.shared_end / kGqaStep);
  if (first < shared_steps) {
    gqa_find_slots(p, t, 0, first, slots);
    gqa_start_copy<kHeadDim>(p.k_cache, p, t, slots, keys);
    gqa_start_copy<kHeadDim>(p.v_cache, p, t, slots, values);
  }
  int step = first;
#pragma unroll 1
  for (; step < shared_steps; step += kGqaWarps) {
    const bool more = step + kGqaWarps < shared_steps;
    float s[32];
    uint32_t w[16];
    gqa_wait_copies<1>();
    gqa_scores<kHeadDim>(q, keys, s);
    if (more) {
      gqa_find_slots(p, t, 0, step + kGqaWarps, slots);
      gqa_start_copy<kHeadDim>(p.k_cache, p, t, slots, keys);
    }
    gqa_softmax<kHeadDim>(st, t, step, scale, s, w);
    more ? gqa_wait_copies<1>() : gqa_wait_copies<0>();
    gqa_add_values<kHeadDim>(st, w, ~0u, ~0u, values);
    __syncwarp();
    if (more) gqa_start_copy<kHeadDim>(p.v_cache, p, t, slots, values);
  }
#pragma unroll 1
  for (; step < last; step += kGqaWarps)
    gqa_tail_step<kHeadDim>(p, t, st, q, step, scale, slots, keys, values);
}

// A warp's normalised result into its partial.
template <int kHeadDim>
__device__ __forceinline__ void gqa_store_partial(const GqaState<kHeadDim>& st,
                                                  GqaPartial<kHeadDim>* to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = lane / 4 + 8 * h;
    const float inverse = st.l[h] > 0 ? __frcp_rn(st.l[h]) : 0.f;
    if (lane % 4 == 0) to->stats[row] = make_float2(st.m[h], st.l[h]);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n++) {
      to->o[row][8 * n + lane % 4 * 2] = __fmul_rn(st.o[4 * n + 2 * h], inverse);
      to->o[row][8 * n + lane % 4 * 2 + 1] = __fmul_rn(st.o[4 * n + 2 * h + 1], inverse);
    }
  }
}

// left = merge(left, right) by the whole block; both in shared memory or left in shared memory.
template <int kHeadDim>
__device__ __forceinline__ void gqa_merge(GqaPartial<kHeadDim>* left,
                                          const GqaPartial<kHeadDim>* right, float scale) {
  constexpr int kPerThread = kGqaTileRows * kHeadDim / (kGqaWarps * 32);
  constexpr int kThreadsPerRow = kHeadDim / kPerThread;
  const int row = threadIdx.x / kThreadsPerRow;
  const float2 a = left->stats[row], b = right->stats[row];
  const AttentionMerge merge = attention_merge(a.x, a.y, b.x, b.y, scale);
#pragma unroll
  for (int i = 0; i < kPerThread; i++) {
    const int c = threadIdx.x % kThreadsPerRow + i * kThreadsPerRow;
    left->o[row][c] = merge_values(merge, left->o[row][c], right->o[row][c]);
  }
  __syncthreads();
  if (threadIdx.x % kThreadsPerRow == 0) left->stats[row] = make_float2(merge.m, merge.l);
  __syncthreads();
}

template <int kHeadDim>
__device__ __forceinline__ void gqa_clear(GqaPartial<kHeadDim>* partial) {
  for (int i = threadIdx.x; i < kGqaTileRows * kHeadDim; i += kGqaWarps * 32)
    (&partial->o[0][0])[i] = 0;
  if (threadIdx.x < kGqaTileRows) partial->stats[threadIdx.x] = make_float2(-INFINITY, 0);
  __syncthreads();
}

template <int kHeadDim>
__device__ __forceinline__ void gqa_store_output(const GqaAttentionParams& p, const GqaTile& t,
                                                 const GqaPartial<kHeadDim>& from) {
  for (int i = threadIdx.x; i < kGqaTileRows * kHeadDim; i += kGqaWarps * 32) {
    const int r = i / kHeadDim, c = i % kHeadDim;
    const int node = r / t.padded_group, head = r % t.padded_group;
    if (node >= t.num_nodes || head >= t.group) continue;
    const int64_t at =
        (int64_t{t.first_row + node} * p.num_heads + t.kv_head * t.group + head) * kHeadDim + c;
    static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(from.o[r][c]);
  }
}

// The positions any row of the tile sees; whole warps.
__device__ __forceinline__ void gqa_tile_range(const GqaTile& t, int& begin, int& end) {
  begin = min(t.begin[0] < t.end[0] ? t.begin[0] : 1 << 30,
              t.begin[1] < t.end[1] ? t.begin[1] : 1 << 30);
  end = max(t.end[0], t.end[1]);
  for (int d = 1; d < 32; d *= 2) {
    begin = min(begin, __shfl_xor_sync(~0u, begin, d));
    end = max(end, __shfl_xor_sync(~0u, end, d));
  }
}

__device__ __forceinline__ void gqa_zero_row(const GqaAttentionParams& p, int row) {
  const int size = p.num_heads / p.num_kv_heads * p.head_dim;
  __nv_bfloat16* out =
      static_cast<__nv_bfloat16*>(p.out) + (int64_t{row} * p.num_kv_heads + blockIdx.y) * size;
  for (int i = threadIdx.x; i < size; i += blockDim.x) out[i] = __float2bfloat16_rn(0.f);
}

// Grid: (rows, kv heads, splits). With one split, writes the output; otherwise one partial result
// per chunk to the workspace, indexed by (row, kv head, chunk).
template <int kHeadDim>
__global__ void __launch_bounds__(kGqaWarps * 32)
    gqa_attention_kernel(GqaAttentionParams p, int padded_group, int max_chunks) {
  extern __shared__ __align__(128) char dynamic_shared[];
  auto* sm = reinterpret_cast<GqaShared<kHeadDim>*>(dynamic_shared);
  grid_dependency_launch();
  grid_dependency_wait();
  const int row = blockIdx.x, warp = threadIdx.x / 32;
  const GqaTile t = gqa_tile(p, row, padded_group);
  if (t.seq < 0 && blockIdx.z == 0) gqa_zero_row(p, row);
  if (t.num_nodes == 0) return;
  const bool split = gridDim.z > 1;
  const float scale = log2_scale(p.softmax_scale);
  uint32_t q[kHeadDim / 4];
  gqa_load_queries<kHeadDim>(p, t, q);
  int begin, end;
  gqa_tile_range(t, begin, end);
  auto* partials = static_cast<GqaPartial<kHeadDim>*>(p.workspace) +
                   (int64_t{row} * p.num_kv_heads + t.kv_head) * max_chunks;
  gqa_clear(&sm->total);
  for (int chunk = begin / kGqaChunkPositions + blockIdx.z; chunk * kGqaChunkPositions < end;
       chunk += gridDim.z) {
    GqaState<kHeadDim> st = {};
    st.m[0] = st.m[1] = -INFINITY;
    // The warp's first step that is not wholly before what the tile sees.
    constexpr int kSteps = kGqaChunkPositions / kGqaStep;
    int first = chunk * kSteps + warp;
    while ((first + 1) * kGqaStep <= begin) first += kGqaWarps;
    gqa_steps<kHeadDim>(
        p, t, st, q, first, min((chunk + 1) * kSteps, (end + kGqaStep - 1) / kGqaStep), scale,
        sm->slots[warp], shared_address(sm->keys[warp]), shared_address(sm->values[warp]));
    __syncthreads();
    gqa_store_partial(st, &sm->partial[warp]);
    __syncthreads();
    gqa_merge(&sm->partial[0], &sm->partial[1], scale);
    gqa_merge(&sm->partial[2], &sm->partial[3], scale);
    gqa_merge(&sm->partial[0], &sm->partial[2], scale);
    if (split) {
      const float4* from = reinterpret_cast<const float4*>(&sm->partial[0]);
      float4* to = reinterpret_cast<float4*>(&partials[chunk]);
      for (int i = threadIdx.x; i < static_cast<int>(sizeof(GqaPartial<kHeadDim>) / 16);
           i += kGqaWarps * 32)
        __stcg(to + i, from[i]);
    } else {
      gqa_merge(&sm->total, &sm->partial[0], scale);
    }
    __syncthreads();
  }
  if (!split) gqa_store_output(p, t, sm->total);
}

// Merges the chunks of one tile in order. Grid: (rows, kv heads).
template <int kHeadDim>
__global__ void __launch_bounds__(kGqaWarps * 32)
    gqa_combine_kernel(GqaAttentionParams p, int padded_group, int max_chunks) {
  __shared__ GqaPartial<kHeadDim> total;
  grid_dependency_launch();
  grid_dependency_wait();
  const GqaTile t = gqa_tile(p, blockIdx.x, padded_group);
  if (t.num_nodes == 0) return;
  const float scale = log2_scale(p.softmax_scale);
  int begin, end;
  gqa_tile_range(t, begin, end);
  const auto* partials = static_cast<const GqaPartial<kHeadDim>*>(p.workspace) +
                         (int64_t{blockIdx.x} * p.num_kv_heads + t.kv_head) * max_chunks;
  gqa_clear(&total);
  for (int chunk = begin / kGqaChunkPositions; chunk * kGqaChunkPositions < end; chunk++)
    gqa_merge(&total, &partials[chunk], scale);
  gqa_store_output(p, t, total);
}

}  // namespace coppice::kernels
