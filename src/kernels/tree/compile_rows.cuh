// Writing the rows of a verify step once it is known what is kept of a tree.
#pragma once

#include "kernels/tree/compile_tree.h"

namespace coppice::kernels {

inline constexpr int kBlockSlots = 64;

// One tree in shared memory.
struct TreeView {
  int32_t* tokens;   // [nodes + 1]
  int32_t* parents;  // [nodes + 1]
  int32_t* depths;   // [nodes + 1]
  int32_t* slots;    // [nodes + 1]
  int32_t* paths;    // [nodes + 1, max_path]
};

__device__ __forceinline__ TreeView make_view(int32_t* words, int max_nodes) {
  const int nodes = max_nodes + 1;
  return {words, words + nodes, words + 2 * nodes, words + 3 * nodes, words + 4 * nodes};
}

// Copies a whole tree, entries beyond its count included, so that no load waits for the count.
// Thread `thread` of `threads` that share the work.
__device__ __forceinline__ void load_tree(const CompileTreeParams& params, const TreeView& view,
                                          int seq, int32_t start, int thread, int threads) {
  const int64_t base = static_cast<int64_t>(seq) * (params.trees.max_nodes + 1);
  start = max(start, 0);
  const int32_t* blocks = params.block_tables + static_cast<int64_t>(seq) * params.max_blocks;
  for (int node = thread; node <= params.trees.max_nodes; node += threads) {
    const int32_t token = params.trees.tokens[base + node];
    const int32_t parent = params.trees.parents[base + node];
    const int32_t depth = params.trees.depths[base + node];
    const int block = (start + node) / kBlockSlots;
    view.slots[node] =
        block < params.max_blocks ? blocks[block] * kBlockSlots + (start + node) % kBlockSlots : -1;
    view.tokens[node] = token;
    view.parents[node] = parent;
    view.depths[node] = depth;
  }
}

// The threads of load_tree, after a barrier among them.
__device__ __forceinline__ void make_paths(const TreeView& view, int count, int max_path,
                                           int thread, int threads) {
  for (int node = thread; node <= count; node += threads) {
    int32_t* path = view.paths + node * max_path;
    const int depth = min(view.depths[node], max_path - 1);
    for (int i = depth + 1; i < max_path; ++i) path[i] = -1;
    int at = node;
    for (int i = depth; i >= 0; --i) {
      path[i] = view.slots[at];
      at = max(view.parents[at], 0);
    }
  }
}

__device__ __forceinline__ void write_rows(const CompileTreeParams& params, const TreeView& view,
                                           int seq, int32_t start, int first, int rows) {
  for (int node = static_cast<int>(threadIdx.x); node < rows;
       node += static_cast<int>(blockDim.x)) {
    const int row = first + node;
    params.token_ids[row] = view.tokens[node];
    params.positions[row] = start + view.depths[node];
    params.slots[row] = view.slots[node];
    params.seq_of_row[row] = seq;
    params.node_of_row[row] = node;
    params.kv_len[row] = start;
    params.path_len[row] = view.depths[node] + 1;
  }
  int32_t* path = params.path + static_cast<int64_t>(first) * params.max_path;
  for (int i = static_cast<int>(threadIdx.x); i < rows * params.max_path;
       i += static_cast<int>(blockDim.x)) {
    path[i] = view.paths[i];
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
  const int64_t end = static_cast<int64_t>(params.num_rows) * params.max_path;
  for (int64_t i = static_cast<int64_t>(first) * params.max_path + thread; i < end; i += step) {
    params.path[i] = -1;
  }
}

}  // namespace coppice::kernels
