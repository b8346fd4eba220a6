// Trees of many nodes: one block grows a tree by rounds (tree_rounds.cuh), or a node at a time
// where that does not go.
#pragma once

#include "kernels/tree/build_tree.cuh"
#include "kernels/tree/tree_rounds.cuh"

namespace coppice::kernels {

// Loads the rows of one sequence; depths from `limit` on do not exist. Returns whether a row rises;
// every warp knows it of its own rows.
template <int kThreads>
__device__ __forceinline__ bool load_rows(const BuildTreeParams& params, int64_t source, int limit,
                                          DraftRows& rows) {
  constexpr int kWarps = kThreads / 32;
  constexpr int kOwn = (kLevelDepths + kWarps - 1) / kWarps;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float values[kOwn][2];
  int32_t ids[kOwn][2];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = i * kWarps + warp;
      const int rank = half * 32 + lane;
      const bool exists = row < params.depth && rank < params.k;
      const int64_t at = source + row * params.k + rank;
      values[i][half] = exists ? params.log_probs[at] : -INFINITY;
      ids[i][half] = exists ? params.ids[at] : -1;
    }
  }
  bool rises = false;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int row = i * kWarps + warp;
    bool ended = row >= limit;
    float last = 0;  // of the half before
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float value = fminf(fmaxf(values[i][half], -INFINITY), 0.0f) + 0.0f;
      const unsigned missing = __ballot_sync(kFullWarp, !(value > -INFINITY));
      const bool on = !ended && (missing & ((2u << lane) - 1)) == 0;
      float before = __shfl_up_sync(kFullWarp, value, 1);
      if (lane == 0) before = last;
      rises = rises || __any_sync(kFullWarp, on && value > before);
      last = __shfl_sync(kFullWarp, value, 31);
      ended = ended || missing != 0;
      rows.log_probs[row][half * 32 + lane] = on ? value : -INFINITY;
      if (half == 0 && lane == 0) rows.best[row] = on ? value : -INFINITY;
      rows.ids[row][half * 32 + lane] = ids[i][half];
    }
  }
  return rises;
}

// Fills the table of grow_tree.
template <int kThreads>
__device__ __forceinline__ void fill_table_from_rows(const DraftRows& rows, int k, Step* table,
                                                     int entries) {
  const auto at = [&](int row, int column) {
    return row < kLevelDepths && column < k ? rows.log_probs[row][column] : -INFINITY;
  };
  int row = static_cast<int>(threadIdx.x) / k;
  int column = static_cast<int>(threadIdx.x) % k;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < entries; i += kThreads) {
    table[i] = {at(row, column), at(row, column + 1), at(row + 1, 0),
                static_cast<uint32_t>(min((row + 1) * k, entries - 1))};
    for (column += kThreads; column >= k; column -= k) ++row;
  }
}

struct TreeNode {
  int32_t parent;
  int depth;  // 0-based
  int rank;
  uint32_t score;
};

__device__ __forceinline__ void write_node(const TreeArrays& trees, int64_t at,
                                           const DraftRows& rows, const TreeNode& node) {
  trees.tokens[at] = rows.ids[node.depth][node.rank];
  trees.parents[at] = node.parent;
  trees.depths[at] = node.depth + 1;
  trees.scores[at] = __uint_as_float(node.score);
}

// Writes the tree of grow_rounds.
template <int kThreads, typename Lists>
__device__ __forceinline__ void write_rounds(const TreeArrays& trees, int64_t base,
                                             const DraftRows& rows, const Lists& lists, int count) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < lists.num_kept; i += kThreads) {
    const uint32_t entry = lists.kept[i];
    const uint2 node = lists.node[entry];
    const uint32_t parent = entry_parent(node);
    const auto place = static_cast<int>(lists.place[entry]);
    if (place >= count) continue;
    write_node(trees, base + place + 1, rows,
               {parent == kRootParent ? 0 : static_cast<int32_t>(lists.place[parent]) + 1,
                entry_depth(node) - 1, entry_rank(node), __float_as_uint(lists.kept_score[i])});
  }
}

// Grows a tree a node at a time in `memory` and writes it. All threads call; returns its nodes.
template <int kSlots, int kThreads>
__device__ __forceinline__ int build_stepwise(const BuildTreeParams& params, int64_t base,
                                              const DraftRows& rows, int budget, float min_score,
                                              unsigned char* memory) {
  __shared__ int shared_count;
  const auto thread = static_cast<int>(threadIdx.x);
  auto* records = reinterpret_cast<Record*>(memory);
  auto* table = reinterpret_cast<Step*>(records + params.trees.max_nodes + 1);
  __syncthreads();
  fill_table_from_rows<kThreads>(rows, params.k, table, params.depth * params.k + 1);
  __syncthreads();
  if (thread < 32) {
    const int grown = grow_tree<kSlots>(table, params.k, budget, min_score, records);
    if (thread == 0) shared_count = grown;
  }
  __syncthreads();
  const int count = shared_count;
#pragma unroll 1
  for (int node = thread + 1; node <= count; node += kThreads) {
    const uint32_t link = records[node].link;
    const auto index = static_cast<int>(index_of(link));
    write_node(params.trees, base + node, rows,
               {static_cast<int32_t>(parent_of(link)), index / params.k, index % params.k,
                records[node].score});
  }
  return count;
}

// Block b: the tree of sequence b. Dynamic shared memory: DraftRows, then TreeLists or the arrays
// of build_stepwise.
template <int kSlots>
__global__ __launch_bounds__(kRoundsThreads) void build_tree_rounds_kernel(BuildTreeParams params) {
  constexpr int kThreads = kRoundsThreads;
  using Lists = TreeLists<kThreads, tree_list_capacity(kSlots)>;
  static_assert(sizeof(DraftRows) <= draft_rows_bytes() &&
                sizeof(Lists) <= tree_lists_bytes(kSlots));
  extern __shared__ __align__(16) unsigned char memory[];
  auto& rows = *reinterpret_cast<DraftRows*>(memory);
  auto& lists = *reinterpret_cast<Lists*>(memory + sizeof(DraftRows));
  const auto seq = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  clear_lists<kThreads>(lists);
  if (thread < kLevelDepths) rows.best[kLevelDepths + thread] = -INFINITY;
  grid_dependency_wait();
  grid_dependency_launch();
  const auto [anchor, limit, budget, min_score] = wanted_tree(params, seq);
  const bool rises =
      load_rows<kThreads>(params, static_cast<int64_t>(seq) * params.depth * params.k, limit, rows);
  const bool stepwise = __syncthreads_or(static_cast<int>(rises)) != 0 || budget <= kStepwiseBudget;
  const int64_t base = static_cast<int64_t>(seq) * (params.trees.max_nodes + 1);
  int count = -1;
  if (anchor >= 0) {
    if (!stepwise) count = grow_rounds<kThreads>(rows, lists, limit, budget, min_score);
    if (count >= 0) {
      write_rounds<kThreads>(params.trees, base, rows, lists, count);
    } else {
      count = build_stepwise<kSlots, kThreads>(params, base, rows, budget, min_score,
                                               memory + sizeof(DraftRows));
    }
  }
  if (thread != 0) return;
  params.trees.counts[seq] = count;
  if (count < 0) return;
  params.trees.tokens[base] = anchor;
  params.trees.parents[base] = -1;
  params.trees.depths[base] = 0;
  params.trees.scores[base] = 0.0f;
}

}  // namespace coppice::kernels
