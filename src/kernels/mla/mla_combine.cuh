// Merges the partial results of tiles that several CTAs worked on, in the binary tree over chunk
// indices, and writes zeros for inert rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/attention_merge.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/mla/mla_work.cuh"

namespace coppice::kernels {

constexpr int kMlaMaxChunks = 512;  // per tile

// Eight values of one row: columns 8k + 2 (lane % 4) + {0, 1}, k = 0..3, of 32.
struct MlaPartial {
  float m, l;
  uint4 o;  // halves
};

__device__ __forceinline__ MlaPartial mla_merge_partials(const MlaPartial& left,
                                                         const MlaPartial& right, float scale) {
  const AttentionMerge merge = attention_merge(left.m, left.l, right.m, right.l, scale);
  MlaPartial r;
  r.m = merge.m, r.l = merge.l;
  const __half2* a = reinterpret_cast<const __half2*>(&left.o);
  const __half2* b = reinterpret_cast<const __half2*>(&right.o);
  __half2* o = reinterpret_cast<__half2*>(&r.o);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const float2 x = __half22float2(a[k]), y = __half22float2(b[k]);
    o[k] = __floats2half2_rn(merge_values(merge, x.x, y.x), merge_values(merge, x.y, y.y));
  }
  return r;
}

// Largest aligned block of chunks that starts at `start` and ends by `end`, as log2 of its size.
__device__ __forceinline__ int mla_block_level(int start, int end) {
  const int fits = 31 - __clz(end - start);
  return start == 0 ? fits : min(fits, __ffs(start) - 1);
}

// For every chunk of the tile that begins a stored partial result, its slot and level; -1 else.
template <class PartBegin>
__device__ __forceinline__ void mla_list_partials(const MlaTile& tile, int* partial,
                                                  const PartBegin& part_begin) {
  for (int c = threadIdx.x; c < tile.num_chunks; c += blockDim.x) {
    int part = 0, above = tile.parts;  // the part that holds the chunk
    while (above - part > 1) {
      const int mid = (part + above) / 2;
      (part_begin(mid) <= c ? part : above) = mid;
    }
    const int end = part_begin(above);
    int index = 0, start = part_begin(part);
    while (start < c) {
      start += 1 << mla_block_level(start, end);
      index++;
    }
    const int fragment = part * tile.group_size + tile.group_index;
    const int slot = tile.first_slot + fragment * tile.fragment_slots + index;
    partial[c] = start == c ? slot << 5 | mla_block_level(c, end) : -1;
  }
}

// A warp's stack of finished subtrees, one per level, in shared memory.
template <int kLevels>
struct MlaCombineStack {
  float2 stats[kLevels][32];
  uint4 o[kLevels][32];
};

template <int kLevels>
__device__ __forceinline__ MlaPartial mla_pop(const MlaCombineStack<kLevels>& stack, int level,
                                              int lane) {
  const float2 stats = stack.stats[level][lane];
  return {stats.x, stats.y, stack.o[level][lane]};
}

// Merges the partial results that begin in [begin, end), an aligned run of chunks; reads kAhead of
// them at a time.
template <int kAhead, int kLevels>
__device__ __forceinline__ MlaPartial mla_merge_run(const MlaWorkspace& ws, const int* partial,
                                                    MlaCombineStack<kLevels>& stack, int begin,
                                                    int end, int octet, int unit, int lane,
                                                    float scale) {
  unsigned occupied = 0;
  for (int c = begin; c < end;) {
    MlaPartial ahead[kAhead];
    int level[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      level[i] = -1;
      while (c < end && partial[c] < 0) c++;  // inside a larger block of an earlier run
      if (c >= end) continue;
      const int64_t slot = partial[c] >> 5;
      level[i] = partial[c] & 31;
      const float2 stats = __ldcg(ws.slot_stats + slot * 2 * kMlaTileRows + octet * 8 + lane / 4);
      ahead[i] = {stats.x, stats.y, __ldcg(ws.slots + slot * 4096 + octet * 512 + unit)};
      c += 1 << level[i];
    }
#pragma unroll 1
    for (int i = 0; i < kAhead; i++) {
      if (level[0] < 0) break;
      MlaPartial value = ahead[0];
      int at = min(level[0], kLevels - 1);  // larger blocks stand alone in their run
#pragma unroll
      for (int k = 0; k + 1 < kAhead; k++) ahead[k] = ahead[k + 1], level[k] = level[k + 1];
      level[kAhead - 1] = -1;
      for (; occupied >> at & 1; at++) {
        value = mla_merge_partials(mla_pop(stack, at, lane), value, scale);
        occupied ^= 1u << at;
      }
      stack.stats[at][lane] = make_float2(value.m, value.l);
      stack.o[at][lane] = value.o;
      occupied |= 1u << at;
    }
  }
  MlaPartial result = {-INFINITY, 0, make_uint4(0, 0, 0, 0)};
  bool any = false;
  for (; occupied; occupied &= occupied - 1) {
    const MlaPartial left = mla_pop(stack, __ffs(occupied) - 1, lane);
    result = any ? mla_merge_partials(left, result, scale) : left;
    any = true;
  }
  return result;
}

__device__ __forceinline__ void mla_write_partial(__nv_bfloat162* out, const MlaPartial& value) {
  const __half2* o = reinterpret_cast<const __half2*>(&value.o);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const float2 v = __half22float2(o[k]);
    out[4 * k] = __floats2bfloat162_rn(v.x, v.y);
  }
}

// The work of a block: its warps share the chunks of one part of the columns, or with many rows
// each warp has a part of its own. With fewest, whose chunks are as many and whose blocks leave the
// GPU idle, there are more warps and each reads further ahead. The merge tree is the same.
enum class MlaCombineRows { kFewest, kFew, kMany };

template <MlaCombineRows kRows>
struct MlaCombineShape {
  static constexpr bool kShared = kRows != MlaCombineRows::kMany;
  static constexpr int kWarps =
      kRows == MlaCombineRows::kFewest ? kMlaFewestCombineWarps : kMlaCombineWarps;
  static constexpr int kLog2Warps = kWarps == 16 ? 4 : 3;
  static_assert(kWarps == 1 << kLog2Warps);
  static constexpr int kAhead = kRows == MlaCombineRows::kFewest ? 8 : 4;
  static constexpr int kParts = kShared ? 1 : kWarps;
  static constexpr int kLevels = kShared ? 10 - kLog2Warps : 10;  // of the chunks of a warp
  struct Shared {
    MlaCombineStack<kLevels> stacks[kWarps];
    int partial[kMlaMaxChunks];
  };
};

// Grid: (octets of all rows, kMlaCombineSplit / kParts).
template <MlaCombineRows kRows>
__global__ void __launch_bounds__(MlaCombineShape<kRows>::kWarps * 32)
    mla_combine(MlaAttentionParams p, MlaWorkspace ws, int padded_heads) {
  using Shape = MlaCombineShape<kRows>;
  extern __shared__ __align__(1024) char dynamic_shared[];
  auto& sm = *reinterpret_cast<typename Shape::Shared*>(dynamic_shared);
  grid_dependency_launch();
  const int octets = padded_heads / 8, row = blockIdx.x / octets;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int part = static_cast<int>(blockIdx.y) * Shape::kParts + (Shape::kShared ? 0 : warp);
  const int unit = part * 32 + lane, head = blockIdx.x % octets * 8 + lane / 4;
  const bool writes = head < p.num_heads && (!Shape::kShared || warp == 0);
  const int t = ws.tile_of_row[row];
  __nv_bfloat162* out = static_cast<__nv_bfloat162*>(p.o_lat) +
                        ((int64_t{row} * p.num_heads + head) * 512 + part * 32) / 2 + lane % 4;
  MlaPartial value = {-INFINITY, 0, make_uint4(0, 0, 0, 0)};
  if (t < 0) {
    grid_dependency_wait();
    if (writes) mla_write_partial(out, value);
    return;
  }
  const MlaTile tile = ws.tiles[t];
  if (tile.parts == 1) {
    grid_dependency_wait();
    return;  // one CTA did it all
  }
  // Lines are of many rows only.
  if constexpr (kRows == MlaCombineRows::kMany) {
    const MlaLine line = ws.header->line;
    mla_list_partials(tile, sm.partial, [&](int at) { return mla_part_begin(tile, line, at); });
  } else {
    mla_list_partials(tile, sm.partial, [&](int at) { return mla_part_begin(tile, at); });
  }
  __syncthreads();
  grid_dependency_wait();

  const float scale = log2_scale(p.softmax_scale);
  const int octet = (row - tile.first_row) * octets + blockIdx.x % octets;
  if constexpr (!Shape::kShared) {
    value = mla_merge_run<Shape::kAhead>(ws, sm.partial, sm.stacks[warp], 0, tile.num_chunks, octet,
                                         unit, lane, scale);
  } else {
    // Warps take aligned runs of 2^level chunks; a block that a CTA stored may cover several runs
    // and then belongs to the first.
    const int level = max(0, 32 - __clz(tile.num_chunks - 1) - Shape::kLog2Warps);
    const int begin = warp << level, end = min((warp + 1) << level, tile.num_chunks);
    if (begin < end)
      value = mla_merge_run<Shape::kAhead>(ws, sm.partial, sm.stacks[warp], begin, end, octet, unit,
                                           lane, scale);
    __syncwarp();
    sm.stacks[warp].stats[0][lane] = make_float2(value.m, value.l);
    sm.stacks[warp].o[0][lane] = value.o;
    for (int step = 1; step < Shape::kWarps; step *= 2) {
      __syncthreads();
      if (warp % (2 * step) != 0) continue;
      value = mla_merge_partials(value, mla_pop(sm.stacks[warp + step], 0, lane), scale);
      sm.stacks[warp].stats[0][lane] = make_float2(value.m, value.l);
      sm.stacks[warp].o[0][lane] = value.o;
    }
  }
  if (writes) mla_write_partial(out, value);
}

}  // namespace coppice::kernels
