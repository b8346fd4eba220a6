// Trees of few nodes, a node at a time; larger ones: build_tree_rounds.cuh.
//
// One warp grows one tree. Every node in the tree (the root included) owns one candidate: the best
// of its children not yet taken. Node n's candidate lives in lane n % 32, slot n / 32, so taking a
// candidate updates two registers and needs no heap.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/tree/build_tree.h"
#include "kernels/tree/build_tree_config.h"

namespace coppice::kernels {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// Scores are at most +0 and never -0 or NaN, so the smallest bit pattern is the best score; -inf is
// the largest and stands for "no candidate".
inline constexpr uint32_t kNoCandidate = 0xff800000u;

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

// What taking a candidate leads to, by its table index (depth - 1) * k + rank; -inf where there is
// no sibling or child.
struct __align__(16) Step {
  float own;    // log-probability of the candidate
  float next;   // of its next sibling, at index + 1
  float below;  // of its first child, at index `child`
  uint32_t child;
};

// A taken node: the candidate below it, its link (parent << 16 | table index) and its score.
struct __align__(16) Record {
  uint32_t child_score;
  uint32_t child_index;
  uint32_t link;
  uint32_t score;
};

__device__ __forceinline__ uint32_t index_of(uint32_t link) {
  return link & 0xffff;
}
__device__ __forceinline__ uint32_t parent_of(uint32_t link) {
  return link >> 16;
}

// The best candidate of a lane. `slots` has the bit of its slot and of any slot that ties with it.
struct Front {
  uint32_t score;
  uint32_t link;
  uint32_t slots;
};

template <int kSlots>
__device__ __forceinline__ Front lane_front(const uint32_t (&score)[kSlots],
                                            const uint32_t (&link)[kSlots]) {
  Front front{score[0], link[0], 1};
#pragma unroll
  for (int s = 1; s < kSlots; ++s) {
    front.slots |= score[s] == front.score ? 1u << s : 0u;
    front.slots = score[s] < front.score ? 1u << s : front.slots;
    front.link = score[s] < front.score ? link[s] : front.link;
    front.score = min(front.score, score[s]);
  }
  return front;
}

// One predicated store: a branch here would lengthen every round.
__device__ __forceinline__ void store_record(Record* record, bool store, uint32_t child_score,
                                             uint32_t child_index, uint32_t link, uint32_t score) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %0, 0;\n\t"
      "@p st.shared.v4.u32 [%1], {%2, %3, %4, %5};\n\t}" ::"r"(static_cast<uint32_t>(store)),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(record))), "r"(child_score),
      "r"(child_index), "r"(link), "r"(score)
      : "memory");
}

// Lanes with `tied` bring several candidates of equal score. Leaves one bit in the slots of one
// lane, the candidate with the smallest rank tuple, and sets its link; every other lane gets no
// bits.
template <int kSlots>
__device__ __forceinline__ void resolve_tie(const uint32_t (&links)[kSlots], bool tied, int k,
                                            const Record* records, Front& front) {
  const auto width = static_cast<uint32_t>(k);
  RankTuple best{~0ull, ~0ull};
  uint32_t best_slot = 0;
  for (uint32_t rest = tied ? front.slots : 0u; rest != 0; rest &= rest - 1) {
    const uint32_t bit = rest & (0u - rest);
    uint32_t candidate = 0;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) candidate = bit == 1u << s ? links[s] : candidate;
    RankTuple tuple;
    uint32_t link = candidate;
    while (true) {
      tuple.set(index_of(link) / width + 1, index_of(link) % width);
      if (parent_of(link) == 0) break;
      link = records[parent_of(link)].link;
    }
    if (tuple.less(best)) {
      best = tuple;
      best_slot = bit;
      front.link = candidate;
    }
  }
  const uint32_t words[4] = {
      static_cast<uint32_t>(best.high >> 32), static_cast<uint32_t>(best.high),
      static_cast<uint32_t>(best.low >> 32), static_cast<uint32_t>(best.low)};
  bool leading = tied;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = leading ? words[i] : ~0u;
    const uint32_t least = __reduce_min_sync(kFullWarp, word);
    leading = leading && word == least;
  }
  front.slots = leading ? best_slot : 0u;
}

// One warp: grows the tree, fills records[1 .. n], returns n. The loop is one chain of latencies:
// the warp's best score (a reduction), the exchange of what its lane knows about the child (through
// the record, in shared memory), the lanes' new fronts. Table reads are issued a round ahead; ties
// and the end leave the straight path.
template <int kSlots>
__device__ __forceinline__ int grow_tree(const Step* table, int k, int budget, float min_score,
                                         Record* records) {
  const auto lane = threadIdx.x & 31;
  uint32_t score[kSlots];
  uint32_t link[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    score[s] = kNoCandidate;
    link[s] = (static_cast<uint32_t>(s) * 32 + lane) << 16;
  }
  if (lane == 0) score[0] = __float_as_uint(table[0].own);
  if (min_score > 0) return 0;
  const uint32_t floor =
      min_score <= 0 ? min(__float_as_uint(min_score + 0.0f), kNoCandidate - 1) : kNoCandidate - 1;
  Front front = lane_front<kSlots>(score, link);
  Step step = table[index_of(front.link)];
  for (int node = 1; node <= budget; ++node) {
    const uint32_t top = __reduce_min_sync(kFullWarp, front.score);
    bool leads = front.score == top;
    const unsigned leaders = __ballot_sync(kFullWarp, leads);
    const float own = __uint_as_float(front.score);
    uint32_t sibling = __float_as_uint(__fadd_rn(__fsub_rn(own, step.own), step.next));
    const uint32_t child = __float_as_uint(__fadd_rn(own, step.below));
    const bool unique = (leaders & (leaders - 1)) == 0;
    store_record(records + node, leads && unique, child, step.child, front.link, top);
    __syncwarp();
    uint2 below = *reinterpret_cast<const uint2*>(records + node);
    bool irregular = top > floor || !unique;
    if (kSlots > 1) {
      const bool twice = leads && (front.slots & (front.slots - 1)) != 0;
      irregular = __any_sync(kFullWarp, twice) || irregular;
    }
    if (__builtin_expect(irregular, 0)) {
      if (top > floor) return node - 1;
      resolve_tie<kSlots>(link, leads, k, records, front);
      leads = front.slots != 0;
      step = table[index_of(front.link)];
      sibling = __float_as_uint(__fadd_rn(__fsub_rn(own, step.own), step.next));
      __syncwarp();
      store_record(records + node, leads, __float_as_uint(__fadd_rn(own, step.below)), step.child,
                   front.link, top);
      __syncwarp();
      below = *reinterpret_cast<const uint2*>(records + node);
    }
    // Bit masks, not compared indices: the arrays stay in registers.
    const uint32_t taken_slot = leads ? front.slots : 0u;
    const uint32_t new_slot = (static_cast<unsigned>(node) & 31) == lane ? 1u << (node / 32) : 0u;
    const uint32_t new_link = static_cast<uint32_t>(node) << 16 | below.y;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      score[s] = (taken_slot & (1u << s)) != 0 ? sibling : score[s];
      link[s] += (taken_slot >> s) & 1u;
      score[s] = (new_slot & (1u << s)) != 0 ? below.x : score[s];
      link[s] = (new_slot & (1u << s)) != 0 ? new_link : link[s];
    }
    front = lane_front<kSlots>(score, link);
    step = table[index_of(front.link)];
  }
  return budget;
}

// What a sequence asks for. `anchor` is negative where there is no tree.
struct WantedTree {
  int32_t anchor;
  int limit;   // of depths
  int budget;  // of nodes without the root
  float min_score;
};

__device__ __forceinline__ WantedTree wanted_tree(const BuildTreeParams& params, int seq) {
  return {.anchor = params.anchors[seq],
          .limit = params.depth_limits == nullptr
                       ? params.depth
                       : min(max(params.depth_limits[seq], 0), params.depth),
          .budget = min(params.budgets[seq], params.trees.max_nodes),
          .min_score = params.min_scores == nullptr ? -INFINITY : params.min_scores[seq]};
}

// Copies words, 16 bytes at a time where count and source allow it. `out` is 16-byte aligned.
__device__ __forceinline__ void copy_words(uint32_t* out, const uint32_t* source, int count) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (count % 4 == 0 && reinterpret_cast<uint64_t>(source) % 16 == 0) {
#pragma unroll 4
    for (int i = thread; i < count / 4; i += kBuildTreeThreads) {
      reinterpret_cast<uint4*>(out)[i] = reinterpret_cast<const uint4*>(source)[i];
    }
  } else {
#pragma unroll 4
    for (int i = thread; i < count; i += kBuildTreeThreads) out[i] = source[i];
  }
}

// Fills the table from log-probabilities in shared memory; depths beyond `limit` do not exist.
__device__ __forceinline__ void fill_table(const float* log_probs, int k, int limit, Step* table,
                                           int entries) {
  const auto at = [&](int row, int column) {
    if (row >= limit || column >= k) return -INFINITY;
    return fminf(fmaxf(log_probs[row * k + column], -INFINITY), 0.0f) + 0.0f;
  };
  int row = static_cast<int>(threadIdx.x) / k;
  int column = static_cast<int>(threadIdx.x) % k;
  for (int i = static_cast<int>(threadIdx.x); i < entries; i += kBuildTreeThreads) {
    table[i] = {at(row, column), at(row, column + 1), at(row + 1, 0),
                static_cast<uint32_t>(min((row + 1) * k, entries - 1))};
    for (column += kBuildTreeThreads; column >= k; column -= k) ++row;
  }
}

// Block b: the tree of sequence b. All threads load and store, the first warp grows.
template <int kSlots>
__global__ __launch_bounds__(kBuildTreeThreads) void build_tree_kernel(BuildTreeParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int shared_count;
  const int k = params.k;
  const int max_nodes = params.trees.max_nodes;
  const int entries = params.depth * k + 1;  // one more: what follows the last rank
  auto* records = reinterpret_cast<Record*>(memory);
  auto* table = reinterpret_cast<Step*>(records + max_nodes + 1);
  auto* log_probs = reinterpret_cast<float*>(table + entries);
  auto* ids = reinterpret_cast<uint32_t*>(log_probs + (params.depth * k + 3) / 4 * 4);
  const auto seq = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  grid_dependency_wait();
  grid_dependency_launch();
  const auto [anchor, limit, budget, min_score] = wanted_tree(params, seq);
  const int words = params.depth * k;
  const int64_t source = static_cast<int64_t>(seq) * words;
  copy_words(reinterpret_cast<uint32_t*>(log_probs),
             reinterpret_cast<const uint32_t*>(params.log_probs + source), words);
  copy_words(ids, reinterpret_cast<const uint32_t*>(params.ids + source), words);
  __syncthreads();
  fill_table(log_probs, k, limit, table, entries);
  __syncthreads();
  if (thread < 32) {
    int count = -1;
    if (anchor >= 0) {
      count = grow_tree<kSlots>(table, k, budget, min_score, records);
    }
    if (thread == 0) {
      shared_count = count;
      params.trees.counts[seq] = count;
    }
  }
  __syncthreads();
  const int64_t base = static_cast<int64_t>(seq) * (max_nodes + 1);
  for (int node = thread; node <= shared_count; node += kBuildTreeThreads) {
    const bool root = node == 0;
    const uint32_t link = root ? 0 : records[node].link;
    const auto index = static_cast<int>(link & 0xffff);
    params.trees.tokens[base + node] = root ? anchor : static_cast<int32_t>(ids[index]);
    params.trees.parents[base + node] = root ? -1 : static_cast<int>(link >> 16);
    params.trees.depths[base + node] = root ? 0 : index / k + 1;
    params.trees.scores[base + node] = root ? 0.0f : __uint_as_float(records[node].score);
  }
}

}  // namespace coppice::kernels
