// Grouped-query attention of rows that share their keys with few others: a block takes a tile of
// (token, head) pairs, and each of its four warps a part of every chunk, whose keys and values it
// stages for itself. Sums and merges are those of the groups, so the bits are the same.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/attention_merge.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/gqa/gqa_attention.h"
#include "kernels/gqa/gqa_attention_config.h"
#include "kernels/gqa/gqa_groups.cuh"
#include "kernels/gqa/gqa_merge.cuh"
#include "kernels/gqa/gqa_step.cuh"

namespace coppice::kernels {

template <int kHeadDim>
struct GqaRowsShared {
  // Of a warp: sides of steps, which are keys or values.
  __nv_bfloat16 sides[kGqaParts][gqa_rows_sides(kHeadDim)][kGqaStep * kHeadDim];
  float o[kGqaParts][kGqaTileRows * gqa_part_pitch(kHeadDim)];
  float2 stats[kGqaParts][kGqaTileRows];
};
static_assert(sizeof(GqaRowsShared<64>) == gqa_rows_shared_bytes(64) &&
              sizeof(GqaRowsShared<128>) == gqa_rows_shared_bytes(128));

// What a lane knows of a row of the block's, row `lane` of them; each warp has all.
struct GqaLaneRow {
  int seq, kv_len, begin, end;
  bool has_path;
};

__device__ __forceinline__ GqaLaneRow gqa_lane_row(const GqaAttentionParams& p, int first_row,
                                                   int num_rows) {
  GqaLaneRow mine = {-1, 0, 0, 0, false};
  const int lane = threadIdx.x % 32, row = first_row + lane;
  if (lane >= num_rows) return mine;
  mine.seq = p.seq_of_row[row], mine.kv_len = p.kv_len[row];
  mine.has_path = p.path_len[row] > 0;
  gqa_range(p, row, mine.begin, mine.end);
  return mine;
}

// Rows that go together: some of one sequence without a path, or one with a path. They have the
// chunks from `chunk` on, of which the block takes `chunks`, each the `stride`th behind the last.
struct GqaRun {
  int first_row, num_rows;
  int seq, kv_len;  // of the row with the most keys of the table
  int begin, end;   // the positions any row sees
  int chunk, stride, chunks;
};

// The run that starts with row `from` of the block's. Whole warps.
__device__ __forceinline__ GqaRun gqa_run(const GqaLaneRow& mine, int first_row, int from,
                                          int num_rows, int stride) {
  constexpr int kFar = 1 << 30;
  const int lane = threadIdx.x % 32;
  GqaRun run;
  run.seq = __shfl_sync(~0u, mine.seq, from);
  const bool joins = lane < num_rows && mine.seq == run.seq && !mine.has_path;
  const unsigned others = __ballot_sync(~0u, joins) >> from;
  run.num_rows = others & 1 ? __ffs(~others) - 1 : 1;
  run.first_row = first_row + from;
  const bool in_run = lane >= from && lane < from + run.num_rows;
  run.kv_len = __reduce_max_sync(~0u, in_run ? mine.kv_len : 0);
  run.begin = __reduce_min_sync(~0u, in_run && mine.begin < mine.end ? mine.begin : kFar);
  run.end = __reduce_max_sync(~0u, in_run ? mine.end : 0);
  const bool sees = run.begin < run.end;
  run.chunk = (sees ? gqa_first_chunk(run.begin) : 0) + blockIdx.z, run.stride = stride;
  const int last = sees ? (run.end + kGqaChunkPositions - 1) / kGqaChunkPositions : 0;
  run.chunks = run.chunk < last ? (last - run.chunk + stride - 1) / stride : 0;
  return run;
}

// Pair `r` of the run's (token, head) pairs; token -1: none.
__device__ __forceinline__ GqaPair gqa_pair_of_run(const GqaAttentionParams& p, const GqaRun& run,
                                                   int log2_group, int r) {
  const GqaPair pair = {r >> log2_group, r & ((1 << log2_group) - 1)};
  const bool exists = pair.token < run.num_rows && pair.head < p.num_heads / p.num_kv_heads;
  return {exists ? pair.token : -1, pair.head};
}

// A warp has two turns in each chunk; -1: no row sees a key of the turn's step.
__device__ __forceinline__ int gqa_step_of_turn(const GqaRun& run, int turn) {
  const int chunk = run.chunk + turn / 2 * run.stride;
  const int step = chunk * kGqaStepsOfChunk + threadIdx.x / 32 + kGqaParts * (turn % 2);
  const bool seen =
      turn < 2 * run.chunks && step * kGqaStep < run.end && (step + 1) * kGqaStep > run.begin;
  return seen ? step : -1;
}

// Of the table, where it has keys of the step.
__device__ __forceinline__ int gqa_block_of_step(const GqaAttentionParams& p, const GqaRun& run,
                                                 int step) {
  if (step < 0 || step * kGqaStep >= run.kv_len) return 0;
  return p.block_tables[int64_t{run.seq} * p.max_blocks + step];
}

// Starts a warp's copies of one side of a step; keys that no row has become zero.
template <int kHeadDim>
__device__ __forceinline__ void gqa_copy_side(const GqaAttentionParams& p, const GqaRun& run,
                                              const void* cache, int step, int block, uint32_t to) {
  constexpr int kPieces = kHeadDim / 8, kKeys = 32 / kPieces;  // keys that a warp copies at once
  if (step >= 0) {
    const int lane = threadIdx.x % 32, piece = lane % kPieces, first = lane / kPieces;
    const int64_t width = int64_t{p.num_kv_heads} * kHeadDim;
    const auto* from = static_cast<const __nv_bfloat16*>(cache) + blockIdx.y * kHeadDim + piece * 8;
    if ((step + 1) * kGqaStep <= run.kv_len) {
      from += (int64_t{block} * kGqaStep + first) * width;
      const uint32_t row = to + first * kPieces * 16;
#pragma unroll
      for (int i = 0; i < kGqaStep / kKeys; i++, from += kKeys * width)
        copy_async_16(row + (piece ^ first ^ (i * kKeys % 8)) * 16 + i * kKeys * kPieces * 16, from,
                      true);
    } else {
      const auto slot_of = [&](int key) {
        const int position = step * kGqaStep + key;
        if (position < run.kv_len) return block * kGqaStep + key;
        if (position >= run.end) return -1;
        return p.path[int64_t{run.first_row} * p.max_path + position - run.kv_len];
      };
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int mine = slot_of(32 * half + lane);
#pragma unroll 4
        for (int at = first; at < 32; at += kKeys) {
          const int slot = __shfl_sync(~0u, mine, at);
          copy_async_16(gqa_piece<kHeadDim>(to, 32 * half + at, piece), from + max(slot, 0) * width,
                        slot >= 0);
        }
      }
    }
  }
  gqa_commit();
}

// Query fragments as gqa_load_queries has them.
template <int kHeadDim>
__device__ __forceinline__ void gqa_load_run_queries(const GqaAttentionParams& p, const GqaRun& run,
                                                     int log2_group, uint32_t (&q)[kHeadDim / 4]) {
  const int lane = threadIdx.x % 32, heads = p.num_heads / p.num_kv_heads;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const GqaPair pair = gqa_pair_of_run(p, run, log2_group, lane / 4 + 8 * h);
    const auto* from = static_cast<const __nv_bfloat16*>(p.q) +
                       (run.first_row + max(pair.token, 0)) * p.q_row_stride +
                       (blockIdx.y * heads + pair.head) * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; i++)
      q[i / 2 * 4 + i % 2 * 2 + h] =
          pair.token >= 0 ? *reinterpret_cast<const uint32_t*>(from + 8 * i) : 0u;
  }
}

// What a thread's rows of the tile see.
__device__ __forceinline__ GqaTile gqa_tile_of_run(const GqaAttentionParams& p,
                                                   const GqaLaneRow& mine, int from,
                                                   const GqaRun& run, int log2_group) {
  GqaTile t;
  t.tile_begin = run.begin, t.tile_end = run.end;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const GqaPair pair = gqa_pair_of_run(p, run, log2_group, threadIdx.x % 32 / 4 + 8 * h);
    const int begin = __shfl_sync(~0u, mine.begin, from + max(pair.token, 0));
    const int end = __shfl_sync(~0u, mine.end, from + max(pair.token, 0));
    t.begin[h] = pair.token < 0 ? 0 : begin, t.end[h] = pair.token < 0 ? 0 : end;
  }
  return t;
}

// A row's four parts of a chunk in shared memory, merged in a tree.
struct GqaMerges {
  AttentionMerge first, second, all;  // of parts 0 and 1, 2 and 3, and the two
};

template <int kHeadDim>
__device__ __forceinline__ GqaMerges gqa_merges(const GqaRowsShared<kHeadDim>& shared, int r,
                                                float scale) {
  float2 s[kGqaParts];
#pragma unroll
  for (int b = 0; b < kGqaParts; b++) s[b] = shared.stats[b][r];
  GqaMerges w;
  w.first = attention_merge(s[0].x, s[0].y, s[1].x, s[1].y, scale);
  w.second = attention_merge(s[2].x, s[2].y, s[3].x, s[3].y, scale);
  w.all = attention_merge(w.first.m, w.first.l, w.second.m, w.second.l, scale);
  return w;
}

template <int kHeadDim>
__device__ __forceinline__ float4 gqa_merged(const GqaRowsShared<kHeadDim>& shared, int r,
                                             int column, const GqaMerges& w) {
  float4 part[kGqaParts];
#pragma unroll
  for (int b = 0; b < kGqaParts; b++)
    part[b] = *reinterpret_cast<const float4*>(shared.o[b] + r * gqa_part_pitch(kHeadDim) + column);
  return merge_values(w.all, merge_values(w.first, part[0], part[1]),
                      merge_values(w.second, part[2], part[3]));
}

// A run's chunks, of which the block takes every `stride`th.
template <int kHeadDim, bool kSplit>
__device__ __forceinline__ void gqa_attend_run(const GqaAttentionParams& p, const GqaLaunch& launch,
                                               const GqaRun& run, const GqaTile& t,
                                               GqaRowsShared<kHeadDim>& shared) {
  constexpr int kSides = gqa_rows_sides(kHeadDim);
  const float scale = log2_scale(p.softmax_scale);
  const GqaWorkspace<kHeadDim> workspace = gqa_workspace<kHeadDim>(p, launch.max_chunks);
  const int part = threadIdx.x / 32;
  const uint32_t sides = shared_address(shared.sides[part]);
  // Side 2 t of the warp are the keys of turn t, side 2 t + 1 its values.
  const auto side_address = [&](int side) {
    return sides + side % kSides * (kGqaStep * kHeadDim * 2);
  };
  const auto start = [&](int side, int step, int block) {
    gqa_copy_side<kHeadDim>(p, run, side % 2 == 0 ? p.k_cache : p.v_cache, step, block,
                            side_address(side));
  };
  int step = gqa_step_of_turn(run, 0), next = gqa_step_of_turn(run, 1);
  const int block = gqa_block_of_step(p, run, step);
  int next_block = gqa_block_of_step(p, run, next);
  start(0, step, block);
  start(1, step, block);
  if (kSides > 2) start(2, next, next_block);
  uint32_t q[kHeadDim / 4];
  gqa_load_run_queries<kHeadDim>(p, run, launch.log2_group, q);
  GqaWarp warp = {};  // whose tile is the block's only one, and whose columns are all

  // A thread merges fours of one row's values.
  const int threads_of_row = (blockDim.x >> launch.log2_group) / launch.rows_of_tile;
  const int r = threadIdx.x / threads_of_row;
  const GqaPair pair = gqa_pair_of_run(p, run, launch.log2_group, r);
  const int64_t row_head = int64_t{run.first_row + pair.token} * p.num_heads +
                           blockIdx.y * (p.num_heads / p.num_kv_heads) + pair.head;
  constexpr int kVectors = kHeadDim / 4 * kGqaTileRows / (32 * kGqaParts);
  const auto column_of = [&](int v) {
    return (threadIdx.x % threads_of_row + v * threads_of_row) * 4;
  };
  // Without a split: all chunks so far.
  [[maybe_unused]] float4 total[kVectors] = {};
  [[maybe_unused]] float m = -INFINITY, l = 0;

  for (int i = 0; i < run.chunks; i++) {
    GqaState<kHeadDim> st;
    gqa_reset(st);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int turn = 2 * i + half, after = gqa_step_of_turn(run, turn + 2);
      const int block_after = gqa_block_of_step(p, run, after);
      float scores[32];
      uint32_t w[16];
      gqa_wait_copies(kSides - 1);
      __syncwarp();
      if (step >= 0) gqa_scores<kHeadDim, 1>(q, side_address(2 * turn), 0, 0, nullptr, scores);
      __syncwarp();
      start(2 * turn + kSides, next, next_block);
      if (step >= 0) gqa_softmax(st, t, step, scale, scores, w);
      gqa_wait_copies(kSides - 1);
      __syncwarp();
      if (step >= 0) gqa_add_all_values<kHeadDim>(st, w, side_address(2 * turn + 1), warp);
      __syncwarp();
      if constexpr (kSides > 2)
        start(2 * turn + 1 + kSides, after, block_after);
      else
        start(2 * turn + 1 + kSides, next, next_block);
      step = next, next = after, next_block = block_after;
    }
    __syncthreads();  // the parts of the chunk before have been read
    gqa_store_part(st, warp, GqaPart<kHeadDim>{shared.o[part], shared.stats[part]});
    __syncthreads();
    if (pair.token < 0) continue;
    const GqaMerges merges = gqa_merges(shared, r, scale);
    const AttentionMerge& all = merges.all;
    [[maybe_unused]] const AttentionMerge add = attention_merge(m, l, all.m, all.l, scale);
    m = add.m, l = add.l;
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
      if (column_of(v) >= kHeadDim) break;
      const float4 o = gqa_merged(shared, r, column_of(v), merges);
      if constexpr (kSplit)
        gqa_store_chunk(workspace, row_head * launch.max_chunks + run.chunk + i * run.stride,
                        column_of(v), {o, all.m, all.l});
      else
        total[v] = merge_values(add, total[v], o);
    }
  }
  if constexpr (!kSplit) {
    if (pair.token < 0) return;
#pragma unroll
    for (int v = 0; v < kVectors; v++)
      if (column_of(v) < kHeadDim)
        gqa_store_output(p, row_head * kHeadDim + column_of(v), total[v]);
  }
}

// Grid: (tiles of rows_of_tile rows, kv heads, blocks that share a tile's chunks).
template <int kHeadDim, bool kSplit>
__global__ void __launch_bounds__(32 * kGqaParts)
    gqa_rows_kernel(const __grid_constant__ GqaAttentionParams p,
                    const __grid_constant__ GqaLaunch launch) {
  extern __shared__ __align__(128) char dynamic_shared[];
  auto& shared = *reinterpret_cast<GqaRowsShared<kHeadDim>*>(dynamic_shared);
  grid_dependency_launch();
  grid_dependency_wait();
  const int first_row = blockIdx.x * launch.rows_of_tile;
  const int num_rows = min(launch.rows_of_tile, p.num_rows - first_row);
  const GqaLaneRow mine = gqa_lane_row(p, first_row, num_rows);
  GqaRun run;
#pragma unroll 1
  for (int from = 0; from < num_rows; from += run.num_rows) {
    run = gqa_run(mine, first_row, from, num_rows, launch.clusters);
    if (run.seq >= 0) {
      const GqaTile t = gqa_tile_of_run(p, mine, from, run, launch.log2_group);
      if (!kSplit || run.chunks > 0) gqa_attend_run<kHeadDim, kSplit>(p, launch, run, t, shared);
    } else if (blockIdx.z == 0) {  // inert rows
      const int size = p.num_heads / p.num_kv_heads * kHeadDim;
      for (int i = threadIdx.x; i < run.num_rows * size; i += blockDim.x)
        static_cast<__nv_bfloat16*>(
            p.out)[(int64_t{run.first_row + i / size} * p.num_kv_heads + blockIdx.y) * size +
                   i % size] = __float2bfloat16_rn(0.f);
    }
  }
}

}  // namespace coppice::kernels
