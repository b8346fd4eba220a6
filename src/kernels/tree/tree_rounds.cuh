// Grows one draft tree in a few rounds instead of a node at a time, with the same result.
//
// The tree is the `budget` first nodes in the order (score descending, rank tuple ascending), and
// that is the order of the pops as long as nobody beats its predecessor: a child adds a number that
// is not positive, so its rounded sum is at most its parent's; a sibling (score - lp + next lp) can
// round up past its elder, is then noticed, and the tree is grown one node at a time. Equal scores
// do no harm: a predecessor's rank tuple is the smaller one.
//
// The first round lists the nodes whose ranks are 0 but for the last: the best path and all
// siblings along it. Each round after it takes the nodes that the round before found with a last
// rank other than 0 and lists the same below each of them. Two bounds keep the lists short. A node
// whose ranks are r_1 .. r_d follows every node whose ranks are nowhere larger (its score is at
// least as high: each rounding is monotone in the parent's score; of equal ones it has the smaller
// tuple), and every prefix of those: the sum over i of (r_1 + 1) .. (r_i + 1), its weight, is at
// most the budget; so there are at most log2(budget) + 1 rounds. And no node below a score that
// `budget` nodes reach is in the tree: that threshold comes from the first round and rises with the
// lists.
#pragma once

#include "kernels/tree/build_tree.h"

namespace coppice::kernels {

inline constexpr int kLevelDepths = 16;
inline constexpr int kLevelRanks = 64;
inline constexpr int kTreeRounds = 12;
inline constexpr unsigned kTreeLanes = 0xffffffffu;
inline constexpr uint32_t kRootParent = 0xffff;

// One sequence's draft in shared memory: not increasing along a row, -inf from the first rank on
// that does not exist.
struct DraftRows {
  alignas(16) float log_probs[kLevelDepths][kLevelRanks];
  int32_t ids[kLevelDepths][kLevelRanks];
  float best[2 * kLevelDepths];  // rank 0 of every depth, then -inf
};

// Nodes found so far, round after round, and those of them that reach the last threshold.
template <int kThreads, int kCapacity>
struct TreeLists {
  static constexpr int kNodes = kCapacity;
  static constexpr int kKept = kCapacity / 4;
  alignas(16) float path_scores[kLevelDepths][kLevelRanks];  // siblings along the best path
  alignas(16) float score[kCapacity];
  alignas(16) float kept_score[kKept];  // -inf beyond the kept ones
  uint2 node[kCapacity];                // see make_entry
  uint16_t place[kCapacity];            // in the tree, of kept nodes
  uint16_t kept[kKept];                 // indices into the list; before, the nodes of a round
  int taken[kTreeRounds];               // nodes that each round starts from
  int added;                            // to the list since the best path
  int num_kept;
  int reached[kThreads / 32][32];  // nodes that reach a trial, as each warp counts them
};

// A node: parent << 16 | depth << 8 | rank, and weight << 16 | product of the ranks + 1.
__device__ __forceinline__ uint32_t entry_parent(uint2 entry) {
  return entry.x >> 16;
}
__device__ __forceinline__ int entry_depth(uint2 entry) {
  return static_cast<int>(entry.x >> 8 & 0xff);
}
__device__ __forceinline__ int entry_rank(uint2 entry) {
  return static_cast<int>(entry.x & 0xff);
}
__device__ __forceinline__ uint2 make_entry(uint32_t parent, int depth, int rank, int weight,
                                            int product) {
  return {parent << 16 | static_cast<uint32_t>(depth) << 8 | static_cast<uint32_t>(rank),
          static_cast<uint32_t>(weight) << 16 | static_cast<uint32_t>(product)};
}

// The best of the lanes' trials that `budget` nodes reach, or `threshold` if that is better.
__device__ __forceinline__ float best_trial(float trial, int count, int budget, float threshold) {
  const uint32_t bits = count >= budget ? __float_as_uint(trial) : 0xff800000u;
  return fmaxf(threshold, __uint_as_float(__reduce_min_sync(kTreeLanes, bits)));
}

template <int kWarps>
__device__ __forceinline__ int sum_reached(const int (*reached)[32]) {
  int sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += reached[w][threadIdx.x & 31];
  return sum;
}

// The best of the lanes' trials that `budget` of scores[0 .. count) reach, or `threshold` if that
// is better. All threads call; the barrier inside also orders what came before.
template <int kThreads>
__device__ __noinline__ float raise_threshold(const float* scores, int count, float trial,
                                              int budget, float threshold, int (*reached)[32]) {
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int reach = 0;
#pragma unroll 4
  for (int i = warp; i < count / 4; i += kWarps) {
    const float4 four = reinterpret_cast<const float4*>(scores)[i];
    reach += static_cast<int>(four.x >= trial);
    reach += static_cast<int>(four.y >= trial);
    reach += static_cast<int>(four.z >= trial);
    reach += static_cast<int>(four.w >= trial);
  }
  if (warp == 0) {
#pragma unroll 1
    for (int i = count / 4 * 4; i < count; ++i) reach += static_cast<int>(scores[i] >= trial);
  }
  reached[warp][lane] = reach;
  __syncthreads();
  return best_trial(trial, sum_reached<kWarps>(reached), budget, threshold);
}

// Scores of siblings, four at a time; starts at the parent.
struct Siblings {
  float score;
  float log_prob = 0;

  __device__ __forceinline__ float next(float entry) {
    score = __fadd_rn(__fsub_rn(score, log_prob), entry);
    log_prob = entry;
    return score;
  }
};

// Thread d of 16: the scores of all siblings at depth d of the best path.
__device__ __forceinline__ void score_path(const DraftRows& rows, int d,
                                           float (*scores)[kLevelRanks]) {
  float parent = 0;
#pragma unroll
  for (int i = 0; i < kLevelDepths - 1; ++i) {
    const float step = rows.log_probs[i][0];
    if (i < d) parent = __fadd_rn(parent, step);
  }
  const auto* row = reinterpret_cast<const float4*>(rows.log_probs[d]);
  auto* out = reinterpret_cast<float4*>(scores[d]);
  Siblings siblings{parent};
#pragma unroll 4
  for (int block = 0; block < kLevelRanks / 4; ++block) {
    const float4 entries = row[block];
    float4 four;
    four.x = fmaxf(siblings.next(entries.x), -INFINITY);  // NaN behind the first -inf
    four.y = fmaxf(siblings.next(entries.y), -INFINITY);
    four.z = fmaxf(siblings.next(entries.z), -INFINITY);
    four.w = fmaxf(siblings.next(entries.w), -INFINITY);
    out[block] = four;
  }
}

// A score that at least `budget` nodes of the first round reach: the worst of lane + 1 depths and
// as many ranks as it takes, for the best lane.
__device__ __forceinline__ float low_threshold(const float (*scores)[kLevelRanks], int depth,
                                               int budget) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int rank = (budget + lane) / (lane + 1) - 1;
  float worst = lane < depth && rank < kLevelRanks ? 0.0f : -INFINITY;
#pragma unroll
  for (int d = 0; d < kLevelDepths; ++d) {
    const float own = scores[d][min(rank, kLevelRanks - 1)];
    if (d <= lane) worst = fminf(worst, own);
  }
  return __uint_as_float(__reduce_min_sync(kTreeLanes, __float_as_uint(worst)));
}

struct Bounds {
  float threshold;
  int budget;
};

// Whether the next round starts from a node.
__device__ __forceinline__ bool is_taken(const DraftRows& rows, uint2 entry, float score,
                                         const Bounds& bounds) {
  const int depth = entry_depth(entry);
  if (entry_rank(entry) == 0 || depth >= kLevelDepths) return false;
  return score + rows.log_probs[depth][0] >= bounds.threshold &&
         static_cast<int>((entry.y >> 16) + (entry.y & 0xffff)) <= bounds.budget;
}

// The lane's place behind `counter` if it is on; one atomic a warp.
__device__ __forceinline__ int append_place(int* counter, bool on) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const unsigned all = __ballot_sync(kTreeLanes, on);
  int at = 0;
  if (lane == 0 && all != 0) at = atomicAdd(counter, __popc(all));
  return __shfl_sync(kTreeLanes, at, 0) + __popc(all & ((1u << lane) - 1));
}

// Lists the first round: the best path in order, `path_nodes` of it, then its siblings. Returns
// false when siblings do not descend.
template <int kThreads, typename Lists>
__device__ __forceinline__ bool list_path(const DraftRows& rows, Lists& lists, int path_nodes,
                                          const Bounds& bounds) {
  bool regular = true;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kLevelDepths * kLevelRanks; i += kThreads) {
    const int d = i / kLevelRanks;
    const int rank = i % kLevelRanks;
    const float score = lists.path_scores[d][rank];
    const bool on = score >= bounds.threshold && d + rank + 1 <= bounds.budget && d <= path_nodes;
    if (on && rank + 1 < kLevelRanks)
      regular = regular && !(lists.path_scores[d][rank + 1] > score);
    const uint2 entry = make_entry(d == 0 ? kRootParent : static_cast<uint32_t>(d - 1), d + 1, rank,
                                   d + rank + 1, rank + 1);
    const int added = append_place(&lists.added, on && rank > 0);
    const int at = rank == 0 ? d : path_nodes + added;
    const bool taken = on && is_taken(rows, entry, score, bounds);
    const int take = append_place(&lists.taken[0], taken);
    if (on && at < Lists::kNodes) {
      lists.score[at] = score;
      lists.node[at] = entry;
    }
    if (taken && take < Lists::kKept) lists.kept[take] = static_cast<uint16_t>(at);
  }
  return regular;
}

// Sixteen lanes: lists the children of node `node` and of the best path below it, lane e those of
// its e-th node. Returns false when they do not fit or do not descend. Whole warps call; groups
// without a node pass on = false.
template <typename Lists>
__device__ __forceinline__ bool list_family(const DraftRows& rows, Lists& lists, int path_nodes,
                                            bool on, uint32_t node, const Bounds& bounds) {
  const int e = static_cast<int>(threadIdx.x) & 15;
  const uint2 entry = on ? lists.node[node] : uint2{0, 1};
  float score = on ? lists.score[node] : -INFINITY;
  const int row_index = entry_depth(entry) + e;
  const auto product = static_cast<int>(entry.y & 0xffff);
  const int weight = static_cast<int>(entry.y >> 16) + product * e;
  const float* steps = &rows.best[entry_depth(entry)];
#pragma unroll
  for (int i = 0; i < kLevelDepths - 1; ++i) {
    if (i < e) score = __fadd_rn(score, steps[i]);
  }
  on = row_index < kLevelDepths && score >= bounds.threshold;
  const int safe_row = min(row_index, kLevelDepths - 1);
  const auto* row = reinterpret_cast<const float4*>(rows.log_probs[safe_row]);
  Siblings siblings{score};
  Siblings fifth{score};
  float first[4] = {};
  bool rises = false;
  bool alive = on;
  int count = 0;
  int needed = weight;
  const auto extend = [&](const float4& entries, float(&scores)[4]) {
    const float four[4] = {entries.x, entries.y, entries.z, entries.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float elder = siblings.score;
      scores[i] = siblings.next(four[i]);
      rises = rises || (alive && scores[i] > elder);
      needed += product;
      alive = alive && scores[i] >= bounds.threshold && needed <= bounds.budget;
      count += static_cast<int>(alive);
    }
  };
  if (on) {
    extend(row[0], first);
    fifth = siblings;
#pragma unroll 1
    for (int block = 1; alive && block < kLevelRanks / 4; ++block) {
      float more[4];
      extend(row[block], more);
    }
  }
  const int at = path_nodes + (count > 0 ? atomicAdd(&lists.added, count) : 0);
  const int above = __shfl_up_sync(kTreeLanes, at, 1);
  if (count == 0 || rises) return !rises;
  if (at + count > Lists::kNodes) return false;
  const uint32_t parent = e == 0 ? node : static_cast<uint32_t>(above);
  const auto store = [&](int rank, float value) {
    if (rank >= count) return;
    lists.score[at + rank] = value;
    lists.node[at + rank] = make_entry(parent, row_index + 1, rank, weight + product * (rank + 1),
                                       product * (rank + 1));
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) store(i, first[i]);
#pragma unroll 1
  for (int rank = 4; rank < count; ++rank) {
    store(rank, fifth.next(rows.log_probs[safe_row][rank]));
  }
  return true;
}

// Puts the nodes among list[begin .. end) that the next round starts from into kept; returns their
// number, which may be more than fit.
template <int kThreads, typename Lists>
__device__ __forceinline__ int take_nodes(const DraftRows& rows, Lists& lists, int begin, int end,
                                          int round, const Bounds& bounds) {
#pragma unroll 1
  for (int first = begin; first < end; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool taken = i < end && is_taken(rows, lists.node[i], lists.score[i], bounds);
    const int at = append_place(&lists.taken[round], taken);
    if (taken && at < Lists::kKept) lists.kept[at] = static_cast<uint16_t>(i);
  }
  __syncthreads();
  return lists.taken[round];
}

// Whether the rank tuple of node `a` is less than that of `b`, another node.
__device__ __noinline__ inline bool tuple_less(const uint2* nodes, uint32_t a, uint32_t b) {
  const int depth_a = entry_depth(nodes[a]);
  const int depth_b = entry_depth(nodes[b]);
#pragma unroll 1
  for (int i = depth_b; i < depth_a; ++i) a = entry_parent(nodes[a]);
#pragma unroll 1
  for (int i = depth_a; i < depth_b; ++i) b = entry_parent(nodes[b]);
#pragma unroll 1
  while (a != b) {
    const uint2 entry_a = nodes[a];
    const uint2 entry_b = nodes[b];
    a = entry_parent(entry_a);
    b = entry_parent(entry_b);
    if (a == b) return entry_rank(entry_a) < entry_rank(entry_b);
  }
  return depth_a < depth_b;
}

// Puts the nodes that reach the threshold into kept. Returns their number, which may be more than
// fit.
template <int kThreads, typename Lists>
__device__ __forceinline__ int keep_nodes(Lists& lists, int listed, float threshold) {
#pragma unroll 1
  for (int begin = 0; begin < listed; begin += kThreads) {
    const int node = begin + static_cast<int>(threadIdx.x);
    const float score = node < listed ? lists.score[node] : -INFINITY;
    const int at = append_place(&lists.num_kept, score >= threshold);
    if (score >= threshold && at < Lists::kKept) {
      lists.kept[at] = static_cast<uint16_t>(node);
      lists.kept_score[at] = score;
    }
  }
  __syncthreads();
  return lists.num_kept;
}

// How many of the kept nodes with the score of node `own` come before it.
template <typename Lists>
__device__ __noinline__ int earlier_equals(const Lists& lists, int own, int kept) {
  const auto* fours = reinterpret_cast<const float4*>(lists.kept_score);
  const float score = lists.kept_score[own];
  int earlier = 0;
#pragma unroll 1
  for (int j = 0; j < (kept + 3) / 4; ++j) {
    const float4 four = fours[j];
    if (four.x != score && four.y != score && four.z != score && four.w != score) continue;
#pragma unroll 1
    for (int i = j * 4; i < j * 4 + 4; ++i) {
      if (i == own || lists.kept_score[i] != score) continue;
      earlier += static_cast<int>(tuple_less(lists.node, lists.kept[i], lists.kept[own]));
    }
  }
  return earlier;
}

// Finds the place of every kept node; four lanes compare for one.
template <int kThreads, typename Lists>
__device__ __forceinline__ void place_nodes(Lists& lists, int kept) {
  const auto* fours = reinterpret_cast<const float4*>(lists.kept_score);
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int begin = 0; begin < kept; begin += kThreads / 4) {
    const int i = min(begin + thread / 4, kept - 1);
    const float score = lists.kept_score[i];
    int better = 0;
    int equal = 0;
    int equal_sum = 0;  // of their indices
    const auto count = [&](float other, int j) {
      const bool same = other == score;
      better += static_cast<int>(other > score);
      equal += static_cast<int>(same);
      equal_sum += same ? j : 0;
    };
#pragma unroll 2
    for (int j = thread % 4; j < (kept + 3) / 4; j += 4) {
      const float4 four = fours[j];
      count(four.x, j * 4);
      count(four.y, j * 4 + 1);
      count(four.z, j * 4 + 2);
      count(four.w, j * 4 + 3);
    }
    int found = better << 16 | equal;
#pragma unroll
    for (int hop = 1; hop < 4; hop *= 2) {
      found += __shfl_xor_sync(kTreeLanes, found, hop);
      equal_sum += __shfl_xor_sync(kTreeLanes, equal_sum, hop);
    }
    if (thread % 4 != 0 || begin + thread / 4 >= kept) continue;
    const uint32_t node = lists.kept[i];
    int place = found >> 16;
    if ((found & 0xffff) == 2) {  // the other one is what is left of the sum
      place += static_cast<int>(tuple_less(lists.node, lists.kept[equal_sum - i], node));
    } else if ((found & 0xffff) > 2) {
      place += earlier_equals(lists, i, kept);
    }
    lists.place[node] = static_cast<uint16_t>(place);
  }
  __syncthreads();
}

template <int kThreads, typename Lists>
__device__ __forceinline__ void clear_lists(Lists& lists) {
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = thread; i < Lists::kKept; i += kThreads) lists.kept_score[i] = -INFINITY;
  if (thread < kTreeRounds) lists.taken[thread] = 0;
  if (thread == 0) lists.added = lists.num_kept = 0;
}

// All threads: fills lists.kept with at least the nodes of the tree, their entries and places, and
// returns the number of nodes; or -1 when the tree has to be grown one node at a time. `lists` is
// clear.
template <int kThreads, typename Lists>
__device__ __forceinline__ int grow_rounds(const DraftRows& rows, Lists& lists, int depth,
                                           int budget, float min_score) {
  constexpr int kFamilies = kThreads / 16;
  if (min_score > 0 || depth < 1 || budget < 1) return min(budget, 0);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  if (thread < kLevelDepths) score_path(rows, thread, lists.path_scores);
  __syncthreads();
  const float low = low_threshold(lists.path_scores, depth, budget);
  const float high = lists.path_scores[0][0];
  // Trials between; none when too few nodes are known. The slack is more than siblings can rise.
  const float step = low > -INFINITY ? (high - low) * (1.0f / 32.0f) : 0.0f;
  const float trial = fminf(low > -INFINITY ? high - step * static_cast<float>(lane) : high, 0.0f);
  const float reached = raise_threshold<kThreads>(lists.path_scores[0], kLevelDepths * kLevelRanks,
                                                  trial, budget, low, lists.reached);
  // Nothing below all finite numbers is ever taken.
  Bounds bounds{fmaxf(fmaxf(min_score, -3.402823466e38f), reached * (1 + 4e-5f)), budget};
  const bool on_path = lane < depth && lane < kLevelDepths && lane < budget &&
                       lists.path_scores[min(lane, kLevelDepths - 1)][0] >= bounds.threshold;
  const int path_nodes = __popc(__ballot_sync(kTreeLanes, on_path));
  bool regular = list_path<kThreads>(rows, lists, path_nodes, bounds);
  if (__syncthreads_or(static_cast<int>(!regular)) != 0) return -1;
  int listed = path_nodes + lists.added;
  int taken = lists.taken[0];
  int pending = 0;
#pragma unroll 1
  for (int round = 1; taken > 0; ++round) {
    if (taken > Lists::kKept) return -1;
    const int begin = listed;
#pragma unroll 1
    for (int first = 0; first < taken; first += kFamilies) {
      const int own = first + thread / 16;
      const bool on = own < taken;
      __syncthreads();
      regular = list_family(rows, lists, path_nodes, on, on ? lists.kept[own] : 0u, bounds);
      if (__syncthreads_or(static_cast<int>(!regular)) != 0) return -1;
      const int before = listed;
      listed = path_nodes + lists.added;
      pending += listed - before;
      if (listed >= budget && pending >= budget / 4) {
        bounds.threshold =
            raise_threshold<kThreads>(lists.score, listed, lists.score[lane * listed / 32], budget,
                                      bounds.threshold, lists.reached);
        pending = 0;
      }
    }
    taken = take_nodes<kThreads>(rows, lists, begin, listed, round, bounds);
  }
  const int kept = keep_nodes<kThreads>(lists, listed, bounds.threshold);
  if (kept > Lists::kKept) return -1;
  place_nodes<kThreads>(lists, kept);
  return min(kept, budget);
}

}  // namespace coppice::kernels
