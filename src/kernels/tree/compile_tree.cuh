// Every block computes the same cut (it is short and reads little), then writes the rows of its own
// sequence: no second launch and no grid-wide barrier.
#pragma once

#include "kernels/sample/launch.cuh"
#include "kernels/sample/order_key.cuh"
#include "kernels/tree/compile_tree.h"
#include "kernels/tree/compile_tree_config.h"

namespace coppice::kernels {

inline constexpr int kCompileThreads = 512;
inline constexpr int kCompileWarps = kCompileThreads / 32;
inline constexpr int kScoreClasses = 2048;
inline constexpr float kClassesPerNat = 100.0f;
inline constexpr float kWeightUnits = 262144.0f;  // 2^18 units of probability: integer sums
inline constexpr int kMaxCompileSeqs = 512;
inline constexpr int kBlockSlots = 64;

struct CompileShared {
  uint32_t count[kScoreClasses];   // nodes per score class, then inclusive prefix sums
  uint32_t weight[kScoreClasses];  // their probability in units, the same
  uint32_t warp_sums[2][kCompileWarps];
  int node_counts[kMaxCompileSeqs];
  int kept[kMaxCompileSeqs];
  int offsets[kMaxCompileSeqs + 1];
  int total_nodes;
  int live_seqs;
  int bucket;
  int capacity;  // nodes to keep
  int listed;
  unsigned long long cut;
};

// One tree in shared memory.
struct TreeView {
  int32_t* tokens;   // [nodes + 1]
  int32_t* parents;  // [nodes + 1]
  int32_t* depths;   // [nodes + 1]
  int32_t* slots;    // [nodes + 1]
  int32_t* paths;    // [nodes + 1, max_path]
};

// Class 0 holds the best scores; the last class everything below -20.47.
__device__ __forceinline__ int score_class(float score) {
  const int index = static_cast<int>(__fmul_rn(score, -kClassesPerNat));
  return min(max(index, 0), kScoreClasses - 1);
}

// Sums over the block of two values; all threads call and get both sums. Two barriers.
__device__ __forceinline__ void scan_block(CompileShared& shared, uint32_t& a, uint32_t& b) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t from_a = __shfl_up_sync(0xffffffffu, a, step);
    const uint32_t from_b = __shfl_up_sync(0xffffffffu, b, step);
    if (lane >= step) {
      a += from_a;
      b += from_b;
    }
  }
  if (lane == 31) {
    shared.warp_sums[0][warp] = a;
    shared.warp_sums[1][warp] = b;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCompileWarps; ++i) {
    if (i >= warp) continue;
    a += shared.warp_sums[0][i];
    b += shared.warp_sums[1][i];
  }
}

// Turns the histograms into inclusive prefix sums.
__device__ __forceinline__ void scan_classes(CompileShared& shared) {
  constexpr int kPerThread = kScoreClasses / kCompileThreads;
  static_assert(kPerThread == 4);
  uint4* counts = reinterpret_cast<uint4*>(shared.count) + threadIdx.x;
  uint4* weights = reinterpret_cast<uint4*>(shared.weight) + threadIdx.x;
  uint4 c = *counts;
  uint4 w = *weights;
  c.y += c.x, c.z += c.y, c.w += c.z;
  w.y += w.x, w.z += w.y, w.w += w.z;
  uint32_t count = c.w;
  uint32_t weight = w.w;
  scan_block(shared, count, weight);
  count -= c.w;
  weight -= w.w;
  *counts = {c.x + count, c.y + count, c.z + count, c.w + count};
  *weights = {w.x + weight, w.y + weight, w.z + weight, w.w + weight};
}

// First class whose inclusive count exceeds capacity (capacity < total nodes).
__device__ __forceinline__ int crossing_class(const CompileShared& shared, int capacity) {
  int low = 0;
  int high = kScoreClasses - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (shared.count[middle] > static_cast<uint32_t>(capacity)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Expected tokens of a step that keeps `capacity` nodes.
__device__ __forceinline__ float expected_tokens(const CompileShared& shared, int capacity) {
  float units;
  if (capacity >= shared.total_nodes) {
    units = static_cast<float>(shared.weight[kScoreClasses - 1]);
  } else {
    const int at = crossing_class(shared, capacity);
    const uint32_t count_before = at == 0 ? 0 : shared.count[at - 1];
    const uint32_t weight_before = at == 0 ? 0 : shared.weight[at - 1];
    const auto taken = static_cast<float>(static_cast<uint32_t>(capacity) - count_before);
    const auto size = static_cast<float>(shared.count[at] - count_before);
    const auto weight = static_cast<float>(shared.weight[at] - weight_before);
    units = __fadd_rn(static_cast<float>(weight_before), __fdiv_rn(__fmul_rn(taken, weight), size));
  }
  return __fadd_rn(static_cast<float>(shared.live_seqs), units / kWeightUnits);
}

// First warp: sets bucket and capacity.
__device__ __forceinline__ void choose_bucket(const CompileTreeParams& params,
                                              CompileShared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  const int room = max(params.num_rows - shared.live_seqs, 0);
  float worth = -1.0f;
  int capacity = room;
  if (params.cost_ms != nullptr && lane < params.num_buckets) {
    const int rows = params.bucket_rows[lane];
    capacity = rows - shared.live_seqs;
    if (capacity >= 0 && rows <= params.num_rows) {
      worth = __fdiv_rn(expected_tokens(shared, capacity), params.cost_ms[lane]);
    }
  }
  const uint64_t key = worth >= 0 ? ranked_key(worth, static_cast<uint32_t>(lane)) : 0;
  const uint64_t best = warp_max(key);
  const int winner = best == 0 ? -1 : static_cast<int>(ranked_key_index(best));
  capacity = winner < 0 ? room : __shfl_sync(0xffffffffu, capacity, winner);
  if (lane == 0) {
    shared.bucket = winner;
    shared.capacity = min(capacity, shared.total_nodes);
  }
}

// Kept when class < cut class, or equal and key >= cut key.
struct Cut {
  int score_class;
  unsigned long long key;
};

__device__ __forceinline__ bool is_kept(const Cut& cut, float score, int at) {
  const int own = score_class(score);
  return own < cut.score_class ||
         (own == cut.score_class && ranked_key(score, static_cast<uint32_t>(at)) >= cut.key);
}

// Finds which nodes of the crossing class are among the `capacity` best. list has room for all
// nodes. All threads call.
__device__ __forceinline__ Cut find_cut(CompileShared& shared, const float* scores, int total,
                                        uint64_t* list) {
  if (shared.capacity >= shared.total_nodes) return {kScoreClasses, 0};
  const int crossing = crossing_class(shared, shared.capacity);
  const int before = crossing == 0 ? 0 : static_cast<int>(shared.count[crossing - 1]);
  const int wanted = shared.capacity - before;
  if (wanted == 0) return {crossing, ~0ull};
  const auto thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < total; at += kCompileThreads) {
    const float score = scores[at];
    if (score == score && score_class(score) == crossing) {
      list[atomicAdd(&shared.listed, 1)] = ranked_key(score, static_cast<uint32_t>(at));
    }
  }
  __syncthreads();
  const int listed = shared.listed;
  if (listed <= kCompileThreads) {
    if (thread < listed) {
      int greater = 0;
      for (int i = 0; i < listed; ++i) greater += list[i] > list[thread];
      if (greater == wanted - 1) shared.cut = list[thread];
    }
    __syncthreads();
    return {crossing, shared.cut};
  }
  uint64_t key = 0;  // largest key that at least `wanted` entries reach, bit by bit
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t candidate = key | 1ull << bit;
    int reached = 0;
    for (int i = thread; i < listed; i += kCompileThreads) reached += list[i] >= candidate;
    uint32_t sum = __reduce_add_sync(0xffffffffu, static_cast<unsigned>(reached));
    if ((thread & 31) == 0) shared.warp_sums[0][thread / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < kCompileWarps; ++i) sum += shared.warp_sums[0][i];
    if (sum >= static_cast<uint32_t>(wanted)) key = candidate;
    __syncthreads();
  }
  return {crossing, key};
}

// Loads the scores of all trees (NaN where there is no node) and fills the histograms.
__device__ __forceinline__ void load_scores(const CompileTreeParams& params, CompileShared& shared,
                                            float* scores, int total) {
  constexpr int kUnroll = 8;
  const int max_nodes = params.trees.max_nodes;
  for (int begin = 0; begin < total; begin += kUnroll * kCompileThreads) {
    float values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = begin + u * kCompileThreads + static_cast<int>(threadIdx.x);
      values[u] = NAN;
      if (at < total) {
        const int seq = at / max_nodes;
        const int node = at % max_nodes + 1;
        if (node <= shared.node_counts[seq]) {
          values[u] = params.trees.scores[static_cast<int64_t>(seq) * (max_nodes + 1) + node];
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = begin + u * kCompileThreads + static_cast<int>(threadIdx.x);
      if (at < total) scores[at] = values[u];
      if (values[u] == values[u]) {
        const int own = score_class(values[u]);
        atomicAdd(&shared.count[own], 1u);
        const float units = __fmul_rn(fminf(__expf(values[u]), 1.0f), kWeightUnits);
        atomicAdd(&shared.weight[own], static_cast<uint32_t>(units));
      }
    }
  }
}

// Copies the block's own tree to shared memory; its slots and, after a barrier, its paths.
__device__ __forceinline__ void load_tree(const CompileTreeParams& params, const TreeView& view,
                                          int seq, int count) {
  const int64_t base = static_cast<int64_t>(seq) * (params.trees.max_nodes + 1);
  const int32_t start = params.context_len[seq];
  const int32_t* blocks = params.block_tables + static_cast<int64_t>(seq) * params.max_blocks;
  for (int node = static_cast<int>(threadIdx.x); node <= count; node += kCompileThreads) {
    const int position = start + node;
    view.tokens[node] = params.trees.tokens[base + node];
    view.parents[node] = params.trees.parents[base + node];
    view.depths[node] = params.trees.depths[base + node];
    view.slots[node] = position / kBlockSlots < params.max_blocks
                           ? blocks[position / kBlockSlots] * kBlockSlots + position % kBlockSlots
                           : -1;
  }
}

__device__ __forceinline__ void make_paths(const TreeView& view, int count, int max_path) {
  for (int node = static_cast<int>(threadIdx.x); node <= count; node += kCompileThreads) {
    int32_t* path = view.paths + node * max_path;
    const int depth = view.depths[node];
    for (int i = depth + 1; i < max_path; ++i) path[i] = -1;
    int at = node;
    for (int i = depth; i >= 0; --i) {
      path[i] = view.slots[at];
      at = max(view.parents[at], 0);
    }
  }
}

__device__ __forceinline__ void write_rows(const CompileTreeParams& params, const TreeView& view,
                                           int seq, int first, int rows) {
  const int32_t start = params.context_len[seq];
  for (int node = static_cast<int>(threadIdx.x); node < rows; node += kCompileThreads) {
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
  for (int i = static_cast<int>(threadIdx.x); i < rows * params.max_path; i += kCompileThreads) {
    path[i] = view.paths[i];
  }
}

// Inert rows [first, num_rows), shared out among the blocks.
__device__ __forceinline__ void write_padding(const CompileTreeParams& params, int first) {
  const int step = static_cast<int>(gridDim.x) * kCompileThreads;
  const int thread = static_cast<int>(blockIdx.x) * kCompileThreads + static_cast<int>(threadIdx.x);
  for (int row = first + thread; row < params.num_rows; row += step) {
    params.token_ids[row] = -1;
    params.positions[row] = 0;
    params.slots[row] = -1;
    params.seq_of_row[row] = -1;
    params.node_of_row[row] = 0;
    params.kv_len[row] = 0;
    params.path_len[row] = 0;
  }
  const int64_t end = static_cast<int64_t>(params.num_rows) * params.max_path;
  for (int64_t i = static_cast<int64_t>(first) * params.max_path + thread; i < end; i += step) {
    params.path[i] = -1;
  }
}

// First warp: rows of every sequence from the kept counts.
__device__ __forceinline__ void scan_rows(const CompileTreeParams& params, CompileShared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  int carry = 0;
  for (int begin = 0; begin < params.num_seqs; begin += 32) {
    const int seq = begin + lane;
    const bool live = seq < params.num_seqs && shared.node_counts[seq] >= 0;
    const int own = live ? shared.kept[seq] + 1 : 0;
    int sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int from = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += from;
    }
    if (seq < params.num_seqs) shared.offsets[seq] = carry + sum - own;
    carry += __shfl_sync(0xffffffffu, sum, 31);
  }
  if (lane == 0) shared.offsets[params.num_seqs] = carry;
}

// Counts what the cut keeps of every tree. Rounding can lift a score above its predecessor's by an
// ulp; the tree then keeps a prefix of as many nodes as were counted.
__device__ __forceinline__ void count_kept(const CompileTreeParams& params, CompileShared& shared,
                                           const float* scores, int total, const Cut& cut) {
  const int max_nodes = params.trees.max_nodes;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  for (int begin = 0; begin < total; begin += kCompileThreads) {
    const int at = begin + static_cast<int>(threadIdx.x);
    const float score = at < total ? scores[at] : NAN;
    const unsigned kept = __ballot_sync(0xffffffffu, score == score && is_kept(cut, score, at));
    const int node = at % max_nodes;
    if (at >= total || (lane != 0 && node != 0)) continue;  // not the first lane of this sequence
    const int lanes = min(32 - lane, max_nodes - node);
    const unsigned mine = (0xffffffffu >> (32 - lanes)) << lane;
    if (kept & mine) atomicAdd(&shared.kept[at / max_nodes], __popc(kept & mine));
  }
}

// grid: one block per sequence (at least one)
__global__ __launch_bounds__(kCompileThreads) void compile_tree_kernel(CompileTreeParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ __align__(16) CompileShared shared;
  const auto seq = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const int nodes = params.trees.max_nodes + 1;
  const int total = params.num_seqs * params.trees.max_nodes;
  auto* list = reinterpret_cast<uint64_t*>(memory);
  auto* scores = reinterpret_cast<float*>(list + total);
  auto* words =
      reinterpret_cast<int32_t*>(memory + (static_cast<size_t>(total) * 12 + 15) / 16 * 16);
  const TreeView view{words, words + nodes, words + 2 * nodes, words + 3 * nodes,
                      words + 4 * nodes};
  for (int i = thread; i < kScoreClasses; i += kCompileThreads) {
    shared.count[i] = 0;
    shared.weight[i] = 0;
  }
  if (thread == 0) {
    shared.total_nodes = 0;
    shared.live_seqs = 0;
    shared.listed = 0;
  }
  __syncthreads();
  grid_dependency_wait();
  grid_dependency_launch();
  int own_nodes = 0;
  int own_live = 0;
  for (int s = thread; s < params.num_seqs; s += kCompileThreads) {
    const int count = params.trees.counts[s];
    shared.node_counts[s] = count;
    shared.kept[s] = 0;
    own_nodes += max(count, 0);
    own_live += count >= 0;
  }
  if (own_live != 0) {
    atomicAdd(&shared.total_nodes, own_nodes);
    atomicAdd(&shared.live_seqs, own_live);
  }
  __syncthreads();
  const int count = seq < params.num_seqs ? shared.node_counts[seq] : -1;
  if (count >= 0) load_tree(params, view, seq, count);
  load_scores(params, shared, scores, total);
  __syncthreads();
  if (count >= 0) make_paths(view, count, params.max_path);
  scan_classes(shared);
  __syncthreads();
  if (thread < 32) choose_bucket(params, shared);
  __syncthreads();
  const Cut cut = find_cut(shared, scores, total, list);
  count_kept(params, shared, scores, total, cut);
  __syncthreads();
  if (thread < 32) scan_rows(params, shared);
  __syncthreads();
  if (count >= 0) {
    const int first = shared.offsets[seq];
    write_rows(params, view, seq, first, shared.offsets[seq + 1] - first);
  }
  const int live_rows = shared.offsets[params.num_seqs];
  write_padding(params, live_rows);
  if (seq != 0) return;
  for (int s = thread; s <= params.num_seqs; s += kCompileThreads) {
    params.row_offsets[s] = shared.offsets[s];
  }
  if (thread == 0 && params.chosen != nullptr) {
    params.chosen[0] = shared.bucket;
    params.chosen[1] = live_rows;
  }
}

}  // namespace coppice::kernels
