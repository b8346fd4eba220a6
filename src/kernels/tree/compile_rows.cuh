// Writing the rows of a verify step once it is known what is kept of a tree.
#pragma once

#include "kernels/tree/compile_tree.h"

namespace coppice::kernels {

inline constexpr int kBlockSlots = 64;
inline constexpr int kAncestorLevels = 5;  // 2^0 .. 2^4 steps up: paths of at most 32

// One tree in shared memory. Ancestors of the root are the root.
struct TreeView {
  int32_t* tokens;     // [nodes]
  int32_t* depths;     // [nodes]
  int32_t* slots;      // [nodes]
  int32_t* ancestors;  // [kAncestorLevels, nodes]: 2^level steps up
  int nodes;           // max_nodes + 1
};

__device__ __forceinline__ TreeView make_view(int32_t* words, int max_nodes) {
  const int nodes = max_nodes + 1;
  return {words, words + nodes, words + 2 * nodes, words + 3 * nodes, nodes};
}

// Copies a whole tree, entries beyond its count included, so that no load waits for the count.
// Thread `thread` of `threads` that share the work.
__device__ __forceinline__ void load_tree(const CompileTreeParams& params, const TreeView& view,
                                          int seq, int32_t start, int thread, int threads) {
  const int64_t base = static_cast<int64_t>(seq) * view.nodes;
  start = max(start, 0);
  const int32_t* blocks = params.block_tables + static_cast<int64_t>(seq) * params.max_blocks;
  for (int node = thread; node < view.nodes; node += threads) {
    const int32_t token = params.trees.tokens[base + node];
    const int32_t parent = params.trees.parents[base + node];
    const int32_t depth = params.trees.depths[base + node];
    const int block = (start + node) / kBlockSlots;
    view.slots[node] =
        block < params.max_blocks ? blocks[block] * kBlockSlots + (start + node) % kBlockSlots : -1;
    view.tokens[node] = token;
    view.depths[node] = depth;
    view.ancestors[node] = max(parent, 0);
  }
}

// Level `level` from the one below, which a barrier has made visible. Entries beyond the tree's
// count hold anything and are not followed.
__device__ __forceinline__ void raise_ancestors(const TreeView& view, int level, int count,
                                                int thread, int threads) {
  const int32_t* below = view.ancestors + (level - 1) * view.nodes;
  for (int node = thread; node <= count; node += threads) {
    view.ancestors[level * view.nodes + node] = below[below[node]];
  }
}

__device__ __forceinline__ int ancestor(const TreeView& view, int node, int steps) {
#pragma unroll
  for (int level = 0; level < kAncestorLevels; ++level) {
    if ((steps >> level & 1) != 0) node = view.ancestors[level * view.nodes + node];
  }
  return node;
}

// Rows first .. first + rows - 1, by all threads, after a barrier on the view.
__device__ __forceinline__ void write_rows(const CompileTreeParams& params, const TreeView& view,
                                           int seq, int32_t start, int first, int rows) {
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  for (int node = thread; node < rows; node += threads) {
    const int row = first + node;
    const int depth = view.depths[node];
    params.token_ids[row] = view.tokens[node];
    params.positions[row] = start + depth;
    params.slots[row] = view.slots[node];
    params.seq_of_row[row] = seq;
    params.node_of_row[row] = node;
    params.kv_len[row] = start;
    params.path_len[row] = depth + 1;
  }
  // Neighbouring threads take the depths of one row.
  int32_t* path = params.path + static_cast<int64_t>(first) * params.max_path;
  const int step = params.max_path <= 8 ? 8 : (params.max_path <= 16 ? 16 : 32);
  const int place = thread % step;
  if (place >= params.max_path) return;
  for (int node = thread / step; node < rows; node += threads / step) {
    const int up = view.depths[node] - place;
    path[node * params.max_path + place] = up < 0 ? -1 : view.slots[ancestor(view, node, up)];
  }
}

// Inert rows [first, num_rows), shared out among the blocks.
__device__ __forceinline__ void write_padding(const CompileTreeParams& params, int first) {
  const auto step = static_cast<int>(gridDim.x * blockDim.x);
  const auto thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int row = first + thread; row < params.num_rows; row += step) {
    params.token_ids[row] = -1;
    params.positions[row] = 0;
    params.slots[row] = -1;
    params.seq_of_row[row] = -1;
    params.node_of_row[row] = -1;
    params.kv_len[row] = 0;
    params.path_len[row] = 0;
  }
  const int end = params.num_rows * params.max_path;
  for (int i = first * params.max_path + thread; i < end; i += step) params.path[i] = -1;
}

}  // namespace coppice::kernels
