// One warp grows one tree. Every node in the tree (the root included) owns one candidate: the best
// of its children not yet taken. Node n's candidate lives in lane n % 32, slot n / 32, so taking a
// candidate updates two registers and needs no heap.
#pragma once

#include "kernels/sample/launch.cuh"
#include "kernels/tree/build_tree.h"
#include "kernels/tree/build_tree_config.h"

namespace coppice::kernels {

inline constexpr int kBuildTreeThreads = 128;
inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kNoCandidate = INT32_MIN;

// Signed key with the order of the floats; kNoCandidate unless score > -inf. No -0 among scores.
__device__ __forceinline__ int score_key(float score) {
  const int bits = __float_as_int(score);
  return score > -INFINITY ? bits ^ ((bits >> 31) & 0x7fffffff) : kNoCandidate;
}

__device__ __forceinline__ float score_of_key(int key) {
  return __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

// Ranks along a path, one byte a depth, first depth in the highest byte: rank + 1, 0 where the path
// has ended. Integer order is the order of rank tuples.
struct RankTuple {
  uint64_t high = 0;
  uint64_t low = 0;

  __device__ void set(uint32_t depth, uint32_t rank) {
    const uint64_t field = static_cast<uint64_t>(rank + 1) << (8 * ((16 - depth) & 7));
    if (depth <= 8) {
      high |= field;
    } else {
      low |= field;
    }
  }
  __device__ bool less(const RankTuple& other) const {
    return high != other.high ? high < other.high : low < other.low;
  }
};

// Table of log-probabilities in shared memory, padded with -inf so that a missing sibling or child
// gives no candidate: row `depth limit` and column k.
struct ScoreTable {
  const float* rows;
  int stride;  // k + 1
};

// A candidate: slot << 16 | depth << 8 | rank.
__device__ __forceinline__ uint32_t depth_of(uint32_t info) {
  return (info >> 8) & 0xff;
}
__device__ __forceinline__ uint32_t rank_of(uint32_t info) {
  return info & 0xff;
}

// A node: x = parent | depth << 16 | rank << 24, y = score bits.
__device__ __forceinline__ uint2 make_record(uint32_t parent, uint32_t info, int key) {
  return {parent | depth_of(info) << 16 | rank_of(info) << 24, __float_as_uint(score_of_key(key))};
}

// What taking candidate `info` with score `key` leaves behind.
__device__ __forceinline__ void continue_candidate(const ScoreTable& table, int key, uint32_t info,
                                                   int& sibling, int& child) {
  const float score = score_of_key(key);
  const float* row = table.rows + (depth_of(info) - 1) * static_cast<uint32_t>(table.stride);
  const float own = row[rank_of(info)];
  const float next = row[rank_of(info) + 1];
  const float below = row[table.stride];
  sibling = score_key(__fadd_rn(__fsub_rn(score, own), next));
  child = score_key(__fadd_rn(score, below));
}

// Among candidates with key `top`: the one with the smallest rank tuple. Returns its lane and, in
// that lane, its info.
template <int kSlots>
__device__ __forceinline__ int resolve_tie(const int (&key)[kSlots], const uint32_t (&info)[kSlots],
                                           int top, const uint2* records, uint32_t& winner) {
  const auto lane = threadIdx.x & 31;
  __syncwarp();
  RankTuple best{~0ull, ~0ull};
  uint32_t tied = 0;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) tied |= key[s] == top ? 1u << s : 0u;
  for (; tied != 0; tied &= tied - 1) {
    uint32_t candidate = 0;
#pragma unroll
    for (int s = kSlots - 1; s >= 0; --s) candidate = (tied & (1u << s)) != 0 ? info[s] : candidate;
    RankTuple tuple;
    tuple.set(depth_of(candidate), rank_of(candidate));
    for (uint32_t node = (candidate >> 16) * 32 + lane; node != 0;) {
      const uint32_t record = records[node].x;
      tuple.set((record >> 16) & 0xff, record >> 24);
      node = record & 0xffff;
    }
    if (tuple.less(best)) {
      best = tuple;
      winner = candidate;
    }
  }
  const uint32_t words[4] = {
      static_cast<uint32_t>(best.high >> 32), static_cast<uint32_t>(best.high),
      static_cast<uint32_t>(best.low >> 32), static_cast<uint32_t>(best.low)};
  bool leading = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = leading ? words[i] : ~0u;
    leading = leading && word == __reduce_min_sync(kFullWarp, word);
  }
  return __ffs(static_cast<int>(__ballot_sync(kFullWarp, leading))) - 1;
}

// One warp: grows the tree, fills records[1 .. n], returns n.
template <int kSlots>
__device__ __forceinline__ int grow_tree(const ScoreTable& table, int budget, float min_score,
                                         uint2* records) {
  const auto lane = static_cast<int>(threadIdx.x & 31);
  int key[kSlots];
  uint32_t info[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    key[s] = kNoCandidate;
    info[s] = static_cast<uint32_t>(s) << 16 | 1u << 8;
  }
  if (lane == 0) key[0] = score_key(table.rows[0]);
  const int floor = max(score_key(min_score + 0.0f), kNoCandidate + 1);
  int taken = 0;
  for (int node = 1; node <= budget; ++node) {
    int best = key[0];
    uint32_t best_info = info[0];
    int copies = 1;
#pragma unroll
    for (int s = 1; s < kSlots; ++s) {
      copies = key[s] == best ? 2 : copies;
      if (key[s] > best) {
        best = key[s];
        best_info = info[s];
        copies = 1;
      }
    }
    int sibling, child;
    continue_candidate(table, best, best_info, sibling, child);
    const int top = __reduce_max_sync(kFullWarp, best);
    if (top < floor) break;
    const unsigned leaders = __ballot_sync(kFullWarp, best == top);
    bool tie = (leaders & (leaders - 1)) != 0;
    if (kSlots > 1) tie = tie || __any_sync(kFullWarp, best == top && copies > 1);
    int winner = __ffs(static_cast<int>(leaders)) - 1;
    if (tie) {
      winner = resolve_tie<kSlots>(key, info, top, records, best_info);
      continue_candidate(table, top, best_info, sibling, child);
    }
    const int child_key = __shfl_sync(kFullWarp, child, winner);
    const uint32_t won = __shfl_sync(kFullWarp, best_info, winner);
    // Bit masks, not compared indices: the arrays stay in registers.
    const uint32_t taken_slot = lane == winner ? 1u << (won >> 16) : 0u;
    const uint32_t new_slot = lane == (node & 31) ? 1u << (node / 32) : 0u;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if ((taken_slot & (1u << s)) != 0) {
        key[s] = sibling;
        info[s] = won + 1;
      }
      if ((new_slot & (1u << s)) != 0) {
        key[s] = child_key;
        info[s] = static_cast<uint32_t>(s) << 16 | (depth_of(won) + 1) << 8;
      }
    }
    if (lane == winner) {
      records[node] = make_record((won >> 16) * 32 + static_cast<uint32_t>(winner), won, top);
    }
    taken = node;
  }
  return taken;
}

// Block b: the tree of sequence b. All threads load and store, the first warp grows.
template <int kSlots>
__global__ __launch_bounds__(kBuildTreeThreads) void build_tree_kernel(BuildTreeParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int shared_count;
  const int stride = params.k + 1;
  const int max_nodes = params.trees.max_nodes;
  auto* records = reinterpret_cast<uint2*>(memory);
  auto* rows = reinterpret_cast<float*>(records + max_nodes + 1);
  auto* ids = reinterpret_cast<int32_t*>(rows + (params.depth + 1) * stride);
  const auto seq = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  grid_dependency_wait();
  grid_dependency_launch();
  const int32_t anchor = params.anchors[seq];
  int limit = params.depth_limits == nullptr ? params.depth : params.depth_limits[seq];
  limit = min(max(limit, 0), params.depth);
  const int budget = min(params.budgets[seq], max_nodes);
  const float min_score = params.min_scores == nullptr ? -INFINITY : params.min_scores[seq];
  const float* log_probs = params.log_probs + static_cast<int64_t>(seq) * params.depth * params.k;
  const int32_t* source_ids = params.ids + static_cast<int64_t>(seq) * params.depth * params.k;
  const int columns = min(params.k, max(budget, 1));
#pragma unroll 4
  for (int i = thread; i < (params.depth + 1) * stride; i += kBuildTreeThreads) {
    const int row = i / stride;
    const int column = i % stride;
    const bool inside = row < limit && column < columns;
    rows[i] = inside ? log_probs[row * params.k + column] + 0.0f : -INFINITY;
    if (inside) ids[row * params.k + column] = source_ids[row * params.k + column];
  }
  __syncthreads();
  if (thread < 32) {
    const int count =
        anchor < 0 ? -1 : grow_tree<kSlots>(ScoreTable{rows, stride}, budget, min_score, records);
    if (thread == 0) {
      shared_count = count;
      params.trees.counts[seq] = count;
    }
  }
  __syncthreads();
  const int64_t base = static_cast<int64_t>(seq) * (max_nodes + 1);
  for (int node = thread; node <= shared_count; node += kBuildTreeThreads) {
    const uint2 record = node == 0 ? uint2{0, 0} : records[node];
    const auto depth = static_cast<int>((record.x >> 16) & 0xff);
    params.trees.tokens[base + node] =
        node == 0 ? anchor : ids[(depth - 1) * params.k + static_cast<int>(record.x >> 24)];
    params.trees.parents[base + node] = node == 0 ? -1 : static_cast<int>(record.x & 0xffff);
    params.trees.depths[base + node] = depth;
    params.trees.scores[base + node] = __uint_as_float(record.y);
  }
}

}  // namespace coppice::kernels
