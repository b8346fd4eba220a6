// A step of 64 keys as a warp computes it: copies, scores, softmax and values, with mma.sync.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/attention_merge.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/gqa/gqa_attention.h"
#include "kernels/gqa/gqa_attention_config.h"
#include "kernels/gqa/gqa_groups.h"

namespace coppice::kernels {

// Where 16-byte piece `piece` of a row lies in a swizzled tile.
template <int kHeadDim>
__device__ __forceinline__ uint32_t gqa_piece(uint32_t tile, int row, int piece) {
  constexpr int kPieces = kHeadDim / 8;
  return tile + (row * kPieces + (piece ^ (row & 7))) * 16;
}

// Starts the copies of a step's keys and values that all rows of a group read through the table;
// beyond the longest row they become zero.
template <int kHeadDim>
__device__ __forceinline__ void gqa_start_copy(const GqaAttentionParams& p, const GqaGroups& g,
                                               int group, int step, int kv_head, uint32_t stage) {
  constexpr int kPieces = kHeadDim / 8;
  const int seq = g.seq[g.first_row[group]];
  const int64_t block = p.block_tables[int64_t{seq} * p.max_blocks + step];
  const int num_keys = g.longest[group] - step * kGqaStep;
  const int64_t first = (block * kGqaStep * p.num_kv_heads + kv_head) * kHeadDim;
  const int64_t stride = int64_t{p.num_kv_heads} * kHeadDim;
#pragma unroll
  for (int side = 0; side < 2; side++) {
    const auto* from = static_cast<const __nv_bfloat16*>(side == 0 ? p.k_cache : p.v_cache) + first;
    const uint32_t to = stage + side * kGqaStep * kHeadDim * 2;
#pragma unroll 4
    for (int i = threadIdx.x; i < kGqaStep * kPieces; i += blockDim.x) {
      const int key = i / kPieces, piece = i % kPieces;
      const bool valid = key < num_keys;
      copy_async_16(gqa_piece<kHeadDim>(to, key, piece),
                    from + (valid ? key : 0) * stride + piece * 8, valid);
    }
  }
}

__device__ __forceinline__ void gqa_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's groups of copies are in flight.
__device__ __forceinline__ void gqa_wait_copies(int pending) {
  if (pending >= 3)
    asm volatile("cp.async.wait_group 3;" ::: "memory");
  else if (pending == 2)
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  else if (pending == 1)
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  else
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// What a warp works on.
struct GqaWarp {
  int kv_head, tile, first_piece, log2_group, window_row;
};

template <int kHeadDim, int kColumnParts>
__device__ __forceinline__ GqaWarp gqa_warp(int window_row, int log2_group) {
  GqaWarp warp;
  warp.kv_head = blockIdx.y;
  warp.tile = threadIdx.x / 32 / kColumnParts;
  warp.first_piece = threadIdx.x / 32 % kColumnParts * (kHeadDim / kColumnParts / 8);
  warp.log2_group = log2_group, warp.window_row = window_row;
  return warp;
}

// Row `r` of a group's (token, head) pairs: its token in the group and its head; token -1: none.
struct GqaPair {
  int token, head;
};

__device__ __forceinline__ GqaPair gqa_pair(const GqaAttentionParams& p, const GqaGroups& g,
                                            int group, int log2_group, int r) {
  const GqaPair pair = {r >> log2_group, r & ((1 << log2_group) - 1)};
  const bool exists = pair.token < g.num_rows[group] && pair.head < p.num_heads / p.num_kv_heads;
  return {exists ? pair.token : -1, pair.head};
}

// What a thread's rows of its warp's tile, lane / 4 and lane / 4 + 8, and the whole tile see.
struct GqaTile {
  int begin[2], end[2];
  int tile_begin, tile_end;
};

__device__ __forceinline__ GqaTile gqa_tile(const GqaAttentionParams& p, const GqaGroups& g,
                                            int group, int tile, int log2_group) {
  GqaTile t;
  const int lane = threadIdx.x % 32;
  t.tile_begin = 1 << 30, t.tile_end = 0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const GqaPair pair = gqa_pair(p, g, group, log2_group, tile * kGqaTileRows + lane / 4 + 8 * h);
    t.begin[h] = t.end[h] = 0;
    if (pair.token < 0) continue;
    const int row = g.first_row[group] + pair.token;
    t.begin[h] = g.row_begin[row], t.end[h] = g.row_end[row];
    if (t.begin[h] < t.end[h]) t.tile_begin = min(t.tile_begin, t.begin[h]);
    t.tile_end = max(t.tile_end, t.end[h]);
  }
#pragma unroll
  for (int d = 4; d < 32; d *= 2) {
    t.tile_begin = min(t.tile_begin, __shfl_xor_sync(~0u, t.tile_begin, d));
    t.tile_end = max(t.tile_end, __shfl_xor_sync(~0u, t.tile_end, d));
  }
  return t;
}

// Starts the copies of a tile's queries, by its warps; rows it does not have become zero.
template <int kHeadDim, int kColumnParts>
__device__ __forceinline__ void gqa_copy_queries(const GqaAttentionParams& p, const GqaGroups& g,
                                                 int group, const GqaWarp& warp, uint32_t to) {
  constexpr int kPieces = kHeadDim / 8;
  const int heads = p.num_heads / p.num_kv_heads;
  for (int i = threadIdx.x % (32 * kColumnParts); i < kGqaTileRows * kPieces;
       i += 32 * kColumnParts) {
    const int r = i / kPieces, piece = i % kPieces;
    const GqaPair pair = gqa_pair(p, g, group, warp.log2_group, warp.tile * kGqaTileRows + r);
    const int row = warp.window_row + g.first_row[group] + max(pair.token, 0);
    const __nv_bfloat16* from = static_cast<const __nv_bfloat16*>(p.q) + row * p.q_row_stride +
                                (warp.kv_head * heads + pair.head) * kHeadDim + piece * 8;
    copy_async_16(gqa_piece<kHeadDim>(to, r, piece), pair.token < 0 ? p.q : from, pair.token >= 0);
  }
}

// Query fragments of mma.m16n8k16, four registers per 16 dimensions. Ends when all warps of the
// tile have theirs.
template <int kHeadDim, int kColumnParts>
__device__ __forceinline__ void gqa_load_queries(uint32_t queries, int tile,
                                                 uint32_t (&q)[kHeadDim / 4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; i++) {
    uint32_t a[4];
    ldmatrix_x4(a, gqa_piece<kHeadDim>(queries, lane % 16, 2 * i + lane / 16));
    q[4 * i] = a[0], q[4 * i + 1] = a[1], q[4 * i + 2] = a[2], q[4 * i + 3] = a[3];
  }
  named_barrier_sync(1 + tile, 32 * kColumnParts);
}

// Running softmax of a warp's rows; o, of its part of the columns, as in the fragments of
// mma.m16n8k16.
template <int kColumns>
struct GqaState {
  float o[kColumns / 2];
  float m[2], l[2];
};

template <int kColumns>
__device__ __forceinline__ void gqa_reset(GqaState<kColumns>& st) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; i++) st.o[i] = 0;
  st.m[0] = st.m[1] = -INFINITY, st.l[0] = st.l[1] = 0;
}

// [16, 8] = q k^T, of eight keys; `row`: where key lane % 8 lies.
template <int kHeadDim>
__device__ __forceinline__ float4 gqa_eight_scores(const uint32_t (&q)[kHeadDim / 4], uint32_t keys,
                                                   int row) {
  const int lane = threadIdx.x % 32;
  float4 d = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kHeadDim / 32; i++) {
    uint32_t k[4];
    ldmatrix_x4(k, gqa_piece<kHeadDim>(keys, row, 4 * i + lane / 8));
    const uint32_t* a = q + 8 * i;
    d = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], k[0], k[1], d);
    d = mma_m16n8k16_bf16(a[4], a[5], a[6], a[7], k[2], k[3], d);
  }
  return d;
}

// d[i] [16, 8] = q k^T of the eights of keys from `first` on. Their sums run side by side.
template <int kHeadDim, int kEights>
__device__ __forceinline__ void gqa_eights(const uint32_t (&q)[kHeadDim / 4], uint32_t keys,
                                           int first, float4 (&d)[kEights]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kEights; n++) d[n] = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kHeadDim / 32; i++) {
    const uint32_t* a = q + 8 * i;
    uint32_t k[kEights][4];
#pragma unroll
    for (int n = 0; n < kEights; n++)
      ldmatrix_x4(k[n], gqa_piece<kHeadDim>(keys, 8 * (first + n) + lane % 8, 4 * i + lane / 8));
#pragma unroll
    for (int n = 0; n < kEights; n++)
      d[n] = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], k[n][0], k[n][1], d[n]);
#pragma unroll
    for (int n = 0; n < kEights; n++)
      d[n] = mma_m16n8k16_bf16(a[4], a[5], a[6], a[7], k[n][2], k[n][3], d[n]);
  }
}

// s [16, 64] = q k^T. The warps of a tile take an equal part of the keys each and pass it to the
// others by `exchange`, a row of `kPitch` floats for each of the tile's.
template <int kHeadDim, int kColumnParts>
__device__ __forceinline__ void gqa_scores(const uint32_t (&q)[kHeadDim / 4], uint32_t keys,
                                           int tile, int column_part, float* exchange,
                                           float (&s)[32]) {
  constexpr int kPitch = gqa_part_pitch(kHeadDim), kEights = 8 / kColumnParts;
  if constexpr (kColumnParts == 1) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float4 d[4];
      gqa_eights<kHeadDim, 4>(q, keys, 4 * half, d);
#pragma unroll
      for (int n = 0; n < 4; n++) {
        float* to = s + 16 * half + 4 * n;
        to[0] = d[n].x, to[1] = d[n].y, to[2] = d[n].z, to[3] = d[n].w;
      }
    }
  } else {
    const int lane = threadIdx.x % 32;
    float* mine = exchange + lane / 4 * kPitch + lane % 4 * 2;
    float4 d[kEights];
    gqa_eights<kHeadDim, kEights>(q, keys, column_part * kEights, d);
#pragma unroll
    for (int i = 0; i < kEights; i++) {
      float* to = mine + 8 * (column_part * kEights + i);
      *reinterpret_cast<float2*>(to) = make_float2(d[i].x, d[i].y);
      *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(d[i].z, d[i].w);
    }
    named_barrier_sync(1 + tile, 32 * kColumnParts);
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const float2 a = *reinterpret_cast<const float2*>(mine + 8 * n);
      const float2 b = *reinterpret_cast<const float2*>(mine + 8 * kPitch + 8 * n);
      s[4 * n] = a.x, s[4 * n + 1] = a.y, s[4 * n + 2] = b.x, s[4 * n + 3] = b.y;
    }
  }
}

// Masked softmax step: updates the state, leaves the weights as operand fragments.
template <int kColumns>
__device__ __forceinline__ void gqa_softmax(GqaState<kColumns>& st, const GqaTile& t, int step,
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
  for (int i = 0; i < kColumns / 2; i++) st.o[i] *= alpha[i / 2 % 2];
  // The sum of the rounded weights, as one more value column that is 1 for every key.
  constexpr uint32_t kOnes = 0x3F803F80;
  float4 sum = make_float4(st.l[0], st.l[0], st.l[1], st.l[1]);
#pragma unroll
  for (int g = 0; g < 4; g++)
    sum = mma_m16n8k16_bf16(w[4 * g], w[4 * g + 1], w[4 * g + 2], w[4 * g + 3], kOnes, kOnes, sum);
  st.l[0] = sum.x, st.l[1] = sum.z;
}

// o += weights values, of 16 keys and the columns from `first_piece` on, for the rows of `mask` (0
// or all bits per row of the thread); `row`: where key lane % 16 lies.
template <int kHeadDim, int kColumns>
__device__ __forceinline__ void gqa_add_values(GqaState<kColumns>& st, const uint32_t* w,
                                               uint32_t mask0, uint32_t mask1, uint32_t values,
                                               int first_piece, int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kColumns / 16; n++) {
    uint32_t b[4];
    ldmatrix_x4_transposed(b, gqa_piece<kHeadDim>(values, row, first_piece + 2 * n + lane / 16));
    float* o = st.o + 8 * n;
    float4 d = mma_m16n8k16_bf16(w[0] & mask0, w[1] & mask1, w[2] & mask0, w[3] & mask1, b[0], b[1],
                                 make_float4(o[0], o[1], o[2], o[3]));
    o[0] = d.x, o[1] = d.y, o[2] = d.z, o[3] = d.w;
    d = mma_m16n8k16_bf16(w[0] & mask0, w[1] & mask1, w[2] & mask0, w[3] & mask1, b[2], b[3],
                          make_float4(o[4], o[5], o[6], o[7]));
    o[4] = d.x, o[5] = d.y, o[6] = d.z, o[7] = d.w;
  }
}

// o += weights values, of the step's 64 keys, which all rows read.
template <int kHeadDim, int kColumns>
__device__ __forceinline__ void gqa_add_all_values(GqaState<kColumns>& st, const uint32_t (&w)[16],
                                                   uint32_t values, const GqaWarp& warp) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; i++)
    gqa_add_values<kHeadDim>(st, w + 4 * i, ~0u, ~0u, values, warp.first_piece, 16 * i + lane % 16);
}

}  // namespace coppice::kernels
