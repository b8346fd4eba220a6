// Grouped-query attention with mma.sync. A group is a run of rows (tokens) of one sequence whose
// (token, head) pairs fill up to eight tiles of 16; its blocks stage every key once for all of
// them. A chunk of 512 positions is eight steps of 64 keys: part b of four runs steps b and b + 4
// from zero, the four results merge in a tree, chunks merge in order. All of it follows from
// absolute positions, so a row's bits depend on nothing else. The parts are the blocks of a
// cluster; where there are no clusters, one block runs them in turn.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/attention_merge.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/gqa/gqa_attention.h"
#include "kernels/gqa/gqa_attention_config.h"
#include "kernels/gqa/gqa_groups.cuh"
#include "kernels/gqa/gqa_merge.cuh"
#include "kernels/gqa/gqa_mixed_step.cuh"
#include "kernels/gqa/gqa_step.cuh"

namespace coppice::kernels {

// Inert rows of the window: zero.
__device__ __forceinline__ void gqa_zero_rows(const GqaAttentionParams& p, const GqaGroups& g,
                                              int window_row, int num_rows, int kv_head) {
  const int size = p.num_heads / p.num_kv_heads * p.head_dim;
  for (int row = 0; row < num_rows; row++) {
    if (g.seq[row] >= 0) continue;
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) +
                         (int64_t{window_row + row} * p.num_kv_heads + kv_head) * size;
    for (int i = threadIdx.x; i < size; i += blockDim.x) out[i] = __float2bfloat16_rn(0.f);
  }
}

// A block of a cluster, its window and the heads of its kv head.
struct GqaPlace {
  int block, window_row, heads, log2_group;
};

// A chunk of a group, and its part that a block has completed.
struct GqaChunk {
  int group, chunk, part;
  bool ends;  // the group
};

// Merges the four parts of a row's chunk, in each block of the cluster for a quarter of the rows,
// and stores it or, without a split, adds it to `total` and stores that of the last one. A thread
// has kVectors times four values. `from`: room for the parts of a row; where one block runs them,
// `two` and `left` hold two parts and the first two.
template <bool kSplit, int kBlocks, int kHeadDim, int kVectors>
__device__ __forceinline__ void gqa_merge_parts(
    const GqaAttentionParams& p, const GqaLaunch& launch, const GqaGroups& g, const GqaWarp& warp,
    const GqaPlace& place, const GqaChunk& chunk, const GqaPart<kHeadDim>& mine,
    const GqaWorkspace<kHeadDim>& workspace, float scale, GqaMerged (&from)[kGqaParts],
    GqaMerged (&two)[kVectors], GqaMerged (&left)[kVectors], GqaMerged (&total)[kVectors]) {
  const int tiles =
      ((g.num_rows[chunk.group] << place.log2_group) + kGqaTileRows - 1) / kGqaTileRows;
  const int share = tiles * (kGqaTileRows / kBlocks);
#pragma unroll
  for (int v = 0; v < kVectors; v++) {
    const int i = threadIdx.x + v * blockDim.x, column = i % (kHeadDim / 4) * 4;
    const int r = place.block * share + i / (kHeadDim / 4);
    const GqaPair pair = gqa_pair(p, g, chunk.group, place.log2_group, r);
    if (i / (kHeadDim / 4) >= share || pair.token < 0) continue;
    GqaMerged merged;
    if constexpr (kBlocks > 1) {
      gqa_load_of_cluster(mine, r, column, from);
      merged =
          gqa_merge(gqa_merge(from[0], from[1], scale), gqa_merge(from[2], from[3], scale), scale);
    } else {
      const GqaMerged own = gqa_part_of_block(mine, r, column);
      two[v] = chunk.part % 2 == 0 ? own : gqa_merge(two[v], own, scale);
      if (chunk.part == 1) left[v] = two[v];
      if (chunk.part < 3) continue;
      merged = gqa_merge(left[v], two[v], scale);
    }
    const int64_t row_head =
        int64_t{place.window_row + g.first_row[chunk.group] + pair.token} * p.num_heads +
        warp.kv_head * place.heads + pair.head;
    if constexpr (kSplit) {
      gqa_store_chunk(workspace, row_head * launch.max_chunks + chunk.chunk, column, merged);
    } else {
      total[v] = gqa_merge(total[v], merged, scale);
      if (chunk.ends) gqa_store_output(p, row_head * kHeadDim + column, total[v].o);
    }
  }
}

// Grid: (clusters of kBlocks, kv heads, windows).
template <int kHeadDim, int kColumnParts, bool kSplit, int kBlocks>
__device__ __forceinline__ void gqa_attend(const GqaAttentionParams& p, const GqaLaunch& launch) {
  constexpr int kColumns = kHeadDim / kColumnParts, kPitch = gqa_part_pitch(kHeadDim);
  constexpr int kTurns = kGqaStepsOfChunk / kBlocks;
  extern __shared__ __align__(128) char dynamic_shared[];
  GqaGroups& g = *reinterpret_cast<GqaGroups*>(dynamic_shared);
  GqaPart<kHeadDim> mine;
  mine.o = reinterpret_cast<float*>(dynamic_shared + sizeof(GqaGroups));
  mine.stats = reinterpret_cast<float2*>(mine.o + launch.tiles * kGqaTileRows * kPitch);
  const uint32_t ring = shared_address(mine.stats + launch.tiles * kGqaTileRows);
  grid_dependency_launch();
  grid_dependency_wait();
  const int block = blockIdx.x % kBlocks, cluster = blockIdx.x / kBlocks;
  const int window_row = blockIdx.z * kGqaWindowRows;
  const int window_rows = min(kGqaWindowRows, p.num_rows - window_row);
  const int log2_group = launch.log2_group;
  const GqaPlace place = {block, window_row, p.num_heads / p.num_kv_heads, log2_group};
  gqa_find_groups(p, window_row, window_rows, launch.tiles * kGqaTileRows >> log2_group, g);
  const GqaWarp warp = gqa_warp<kHeadDim, kColumnParts>(window_row, log2_group);
  if (blockIdx.x == 0) gqa_zero_rows(p, g, window_row, window_rows, warp.kv_head);
  if (g.count == 0) return;  // all rows are inert, as the rows of a round behind the last are

  const auto [first, last] = gqa_items_of<kSplit>(g, cluster, launch.clusters);
  if (first == last) return;  // as all blocks of the cluster

  const float scale = log2_scale(p.softmax_scale);
  const GqaWorkspace<kHeadDim> workspace = gqa_workspace<kHeadDim>(p, launch.max_chunks);
  // Fours of a tile's values that each thread merges.
  constexpr int kThreadsOfTile = 32 * kColumnParts;
  constexpr int kVectors =
      (kGqaTileRows * kHeadDim / 4 / kBlocks + kThreadsOfTile - 1) / kThreadsOfTile;
  GqaMerged total[kVectors];                // without a split
  GqaMerged two[kVectors], left[kVectors];  // two parts, the first two, where one block runs them
  GqaState<kColumns> st;
  GqaTile t;
  uint32_t q[kHeadDim / 4];
  GqaCursor work = gqa_cursor(g, first), ahead = work;
  int issued = 0;
  const int jobs = kTurns * (last - first);
  // Starts copies up to those of `until`, but not past a step of mixed keys.
  const auto fill = [&](int until) {
    for (until = min(until, jobs); issued < until; issued++, gqa_advance<kTurns>(g, ahead)) {
      const GqaStepOf s = gqa_step_of(g, ahead, block);
      if (s.mixed) return;
      if (!s.empty)
        gqa_start_copy<kHeadDim>(p, g, ahead.group, s.step, warp.kv_head,
                                 ring + (issued & (launch.stages - 1)) * gqa_stage_bytes(kHeadDim));
      gqa_commit();
    }
  };
  int loaded = -1;  // the group whose queries the warp holds
  // Of the tile: its queries, then scores, then its part of a chunk.
  float* const scratch = mine.o + warp.tile * kGqaTileRows * kPitch;
  const auto load_queries = [&] {
    gqa_load_queries<kHeadDim, kColumnParts>(shared_address(scratch), warp.tile, q);
  };
  for (int job = 0; job < jobs; job++, gqa_advance<kTurns>(g, work)) {
    if (work.turn % 2 == 0) {
      // The parts of the chunk before have been read.
      if (kBlocks > 1 && job > 0) cluster_wait();
      gqa_reset(st);
    }
    const bool fresh = work.group != loaded;
    if (fresh) {
      loaded = work.group;
      if (kBlocks == 1) __syncthreads();
      gqa_copy_queries<kHeadDim, kColumnParts>(p, g, loaded, warp, shared_address(scratch));
      gqa_commit();
      t = gqa_tile(p, g, loaded, warp.tile, log2_group);
      if constexpr (!kSplit)
        for (GqaMerged& row : total) row = {make_float4(0, 0, 0, 0), -INFINITY, 0};
    }
    const GqaStepOf s = gqa_step_of(g, work, block);
    const bool filled = issued > job;  // not at the beginning and behind mixed keys
    if (filled || s.mixed) gqa_wait_copies(fresh ? 0 : issued - job - 1);
    __syncthreads();
    if (fresh && (filled || s.mixed)) load_queries();
    if (s.mixed) {
      // Copies, lest they lie in memory all the time for this call's sake.
      GqaState<kColumns> state = st;
      GqaTile tile = t;
      uint32_t queries[kHeadDim / 4];
#pragma unroll
      for (int i = 0; i < kHeadDim / 4; i++) queries[i] = q[i];
      gqa_mixed_step<kHeadDim, kColumns>(p, g, loaded, warp, tile, state, queries, s.step, scale,
                                         ring, launch.stages * kGqaStep);
      st = state;
      issued++;
      gqa_advance<kTurns>(g, ahead);
    } else {
      fill(job + launch.stages);
      if (!filled) {
        gqa_wait_copies(issued - job - 1);
        __syncthreads();
        if (fresh) load_queries();
      }
      if (s.step * kGqaStep < t.tile_end && (s.step + 1) * kGqaStep > t.tile_begin) {
        const uint32_t keys = ring + (job & (launch.stages - 1)) * gqa_stage_bytes(kHeadDim);
        float scores[32];
        uint32_t w[16];
        gqa_scores<kHeadDim, kColumnParts>(q, keys, warp.tile, warp.first_piece / (kColumns / 8),
                                           scratch, scores);
        gqa_softmax(st, t, s.step, scale, scores, w);
        gqa_add_all_values<kHeadDim>(st, w, keys + kGqaStep * kHeadDim * 2, warp);
      }
    }
    if (work.turn % 2 == 0) continue;

    // A part is complete. The four of a row merge, in each block of the cluster for a quarter of
    // the rows.
    named_barrier_sync(1 + warp.tile, 32 * kColumnParts);  // the tile's scores have been read
    if (warp.tile * kGqaTileRows < g.num_rows[loaded] << log2_group) gqa_store_part(st, warp, mine);
    if constexpr (kBlocks > 1)
      cluster_sync();
    else
      __syncthreads();
    const GqaChunk chunk = {loaded, s.step / kGqaStepsOfChunk, work.turn / 2,
                            work.item + 1 == g.first_item[loaded + 1]};
    GqaMerged from[kGqaParts];
    gqa_merge_parts<kSplit, kBlocks>(p, launch, g, warp, place, chunk, mine, workspace, scale, from,
                                     two, left, total);
    if constexpr (kBlocks > 1) cluster_arrive();
  }
  if constexpr (kBlocks > 1) cluster_wait();
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr int kGqaMostBlocks = kGqaParts;
#else
constexpr int kGqaMostBlocks = 1;
#endif

template <int kHeadDim, int kColumnParts, bool kSplit, int kBlocks>
__global__ void __launch_bounds__(kGqaMaxThreads)
    gqa_attention_kernel(const __grid_constant__ GqaAttentionParams p,
                         const __grid_constant__ GqaLaunch launch) {
  if constexpr (kBlocks <= kGqaMostBlocks)
    gqa_attend<kHeadDim, kColumnParts, kSplit, kBlocks>(p, launch);
}

}  // namespace coppice::kernels
