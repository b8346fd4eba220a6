// Every block computes the same cut (it is short and reads little), then writes the rows of its own
// sequence: no second launch and no grid-wide barrier. Merging trees by the worth of their next
// nodes is the same as sorting all nodes by (least worth up to the node, sequence, node), so the
// cut is a selection: a histogram over worth classes of 0.01 nat finds the class where a bucket
// ends, a list of that class decides exactly.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/sample/order_key.cuh"
#include "kernels/tree/compile_rows.cuh"
#include "kernels/tree/compile_tree.h"
#include "kernels/tree/compile_tree_config.h"

namespace coppice::kernels {

inline constexpr int kMaxCompileSeqs = 512;
inline constexpr int kWorthClasses = 2048;
inline constexpr float kClassesPerNat = 100.0f;
inline constexpr float kWorthUnits = 262144.0f;  // 2^18 units of probability: integer sums
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Where a bucket ends among the classes.
struct Crossing {
  int worth_class;        // the first class that does not fit
  uint32_t count_before;  // nodes of better classes
  float units;            // worth of what the bucket keeps
};

struct CompileShared {
  uint32_t count[kWorthClasses];  // nodes per class
  uint32_t worth[kWorthClasses];  // their worth in units
  uint32_t warp_sums[2][32];
  Crossing crossings[32];  // per bucket
  uint32_t total_worth;
  int listed;
  unsigned long long cut;
};

// Natural logarithm of a node's worth.
__device__ __forceinline__ float log_worth(const CompileTreeParams& params, float score,
                                           int depth) {
  if (params.calibration == nullptr) return score;
  return __fadd_rn(score, logf(params.calibration[min(max(depth, 0), params.max_path - 1)]));
}

__device__ __forceinline__ uint32_t worth_units(float log_worth) {
  return static_cast<uint32_t>(__fmul_rn(fminf(__expf(log_worth), 4.0f), kWorthUnits));
}

// Class 0 holds the best; the last class everything below -20.47.
__device__ __forceinline__ int worth_class(float log_worth) {
  const int index = static_cast<int>(fmaxf(fminf(-log_worth, 21.0f), 0.0f) * kClassesPerNat);
  return min(index, kWorthClasses - 1);
}

struct Batch {
  int live;   // sequences
  int nodes;  // of all trees
};

// Lane b's bucket, loaded before it is needed.
struct Bucket {
  int rows;     // -1: no bucket
  float speed;  // 1 / cost
};

__device__ __forceinline__ Bucket load_bucket(const CompileTreeParams& params) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  if (params.cost_ms == nullptr || lane >= params.num_buckets) return {-1, 0.0f};
  return {params.bucket_rows[lane], __frcp_rn(params.cost_ms[lane])};
}

struct Choice {
  int bucket;    // -1: no table, or no bucket holds all roots
  int capacity;  // nodes to keep
};

// Nodes that lane b's bucket keeps; -1: not allowed. Without a table lane 0 stands for num_rows.
__device__ __forceinline__ int lane_capacity(const CompileTreeParams& params, const Bucket& bucket,
                                             const Batch& batch) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  int rows = bucket.rows;
  if (params.cost_ms == nullptr) rows = lane == 0 ? max(params.num_rows, batch.live) : -1;
  return rows < batch.live || (rows > params.num_rows && params.cost_ms != nullptr)
             ? -1
             : min(rows - batch.live, batch.nodes);
}

// One warp; lane b brings its bucket's capacity and the worth in units of what it keeps.
__device__ __forceinline__ Choice choose_bucket(const CompileTreeParams& params,
                                                const Bucket& bucket, const Batch& batch,
                                                int capacity, float units) {
  if (params.cost_ms == nullptr) return {-1, __shfl_sync(kAllLanes, capacity, 0)};
  const auto lane = threadIdx.x & 31;
  const float tokens = static_cast<float>(batch.live) + units * (1.0f / kWorthUnits);
  const uint64_t best = warp_max(capacity >= 0 ? ranked_key(tokens * bucket.speed, lane) : 0);
  if (best == 0) return {-1, 0};
  const int winner = static_cast<int>(ranked_key_index(best));
  return {winner, __shfl_sync(kAllLanes, capacity, winner)};
}

// ---- Several sequences

// Loads the worth of all nodes: merge keys (least log-worth up to the node, NaN where there is
// none) to shared memory, and the histograms. A warp owns whole sequences, 32 nodes a step.
template <int kThreads>
__device__ __forceinline__ void load_worth(const CompileTreeParams& params, CompileShared& shared,
                                           float* keys) {
  constexpr int kUnroll = 4;
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int max_nodes = params.trees.max_nodes;
  float least = 0;
  int seq = static_cast<int>(threadIdx.x) / 32;
  int index = lane;  // node - 1
  while (seq < params.num_seqs) {
    float scores[kUnroll];
    int depths[kUnroll];
    int counts[kUnroll];
    int seqs[kUnroll];
    int indices[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      seqs[u] = seq;
      indices[u] = index;
      counts[u] = -1;
      if (seq < params.num_seqs) {
        const int at = seq * (max_nodes + 1) + min(index, max_nodes - 1) + 1;
        counts[u] = __ldcg(params.trees.counts + seq);
        scores[u] = params.trees.scores[at];
        depths[u] = params.calibration == nullptr ? 0 : params.trees.depths[at];
      }
      const bool next = index - lane + 32 >= max_nodes;
      index = next ? lane : index + 32;
      seq += next ? kWarps : 0;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (seqs[u] >= params.num_seqs) break;
      const bool inside = indices[u] < counts[u];
      const float own = inside ? log_worth(params, scores[u], depths[u]) : INFINITY;
      float key = own;
#pragma unroll
      for (int hop = 1; hop < 32; hop *= 2) {
        const float from = __shfl_up_sync(kAllLanes, key, hop);
        if (lane >= hop) key = fminf(key, from);
      }
      if (indices[u] != lane) key = fminf(key, least);
      least = __shfl_sync(kAllLanes, key, 31);
      if (indices[u] < max_nodes) keys[seqs[u] * max_nodes + indices[u]] = inside ? key : NAN;
      if (!inside) continue;
      const int at = worth_class(key);
      atomicAdd(&shared.count[at], 1u);
      atomicAdd(&shared.worth[at], worth_units(own));
    }
  }
}

// Sums the histograms up and finds the crossing of every bucket (lane b: capacity). `between` runs
// after the inner barrier. Ends with a barrier.
template <int kThreads, typename Between>
__device__ __forceinline__ void find_crossings(CompileShared& shared, int capacity, int all_nodes,
                                               Between&& between) {
  constexpr int kPerThread = kWorthClasses / kThreads;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t counts[kPerThread];
  uint32_t worths[kPerThread];
  uint32_t count = 0;
  uint32_t worth = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    counts[i] = shared.count[static_cast<int>(threadIdx.x) * kPerThread + i];
    worths[i] = shared.worth[static_cast<int>(threadIdx.x) * kPerThread + i];
    count += counts[i];
    worth += worths[i];
  }
  const uint32_t own_count = count;
  const uint32_t own_worth = worth;
#pragma unroll
  for (int hop = 1; hop < 32; hop *= 2) {
    const uint32_t from_count = __shfl_up_sync(kAllLanes, count, hop);
    const uint32_t from_worth = __shfl_up_sync(kAllLanes, worth, hop);
    if (lane >= hop) {
      count += from_count;
      worth += from_worth;
    }
  }
  if (lane == 31) {
    shared.warp_sums[0][warp] = count;
    shared.warp_sums[1][warp] = worth;
  }
  __syncthreads();
  between();
  const bool earlier = lane < warp;
  count += __reduce_add_sync(kAllLanes, earlier ? shared.warp_sums[0][lane] : 0u);
  worth += __reduce_add_sync(kAllLanes, earlier ? shared.warp_sums[1][lane] : 0u);
  if (threadIdx.x == kThreads - 1) shared.total_worth = worth;
  const uint32_t begin = __shfl_sync(kAllLanes, count - own_count, 0);
  const uint32_t end = __shfl_sync(kAllLanes, count, 31);
  const auto place = static_cast<uint32_t>(capacity);
  const bool here = capacity >= 0 && capacity < all_nodes && place >= begin && place < end;
  for (unsigned rest = __ballot_sync(kAllLanes, here); rest != 0; rest &= rest - 1) {
    const int b = __ffs(static_cast<int>(rest)) - 1;
    const uint32_t wanted = __shfl_sync(kAllLanes, place, b);
    uint32_t before = count - own_count;
    uint32_t worth_before = worth - own_worth;
    if (wanted < before || wanted >= count) continue;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (wanted >= before && wanted < before + counts[i]) {
        const float part =
            __fdividef(static_cast<float>(wanted - before) * static_cast<float>(worths[i]),
                       static_cast<float>(counts[i]));
        shared.crossings[b] = {static_cast<int>(threadIdx.x) * kPerThread + i, before,
                               static_cast<float>(worth_before) + part};
      }
      before += counts[i];
      worth_before += worths[i];
    }
  }
  __syncthreads();
}

// A node is kept when its class is below the cut's, or equal and its ranked key reaches the cut's.
struct Cut {
  int worth_class;
  unsigned long long key;
};

__device__ __forceinline__ bool is_kept(const Cut& cut, float key, int at) {
  const int own = worth_class(key);
  return own < cut.worth_class ||
         (own == cut.worth_class && ranked_key(key, static_cast<uint32_t>(at)) >= cut.key);
}

// The largest key that at least `wanted` of list[0 .. listed) reach, bit by bit.
template <int kThreads>
__device__ __noinline__ uint64_t select_key(CompileShared& shared, const uint64_t* list, int listed,
                                            int wanted) {
  const auto thread = static_cast<int>(threadIdx.x);
  uint64_t key = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t candidate = key | 1ull << bit;
    unsigned reached = 0;
    for (int i = thread; i < listed; i += kThreads) reached += list[i] >= candidate;
    reached = __reduce_add_sync(kAllLanes, reached);
    if ((thread & 31) == 0) shared.warp_sums[0][thread / 32] = reached;
    __syncthreads();
    reached = 0;
    for (int i = 0; i < kThreads / 32; ++i) reached += shared.warp_sums[0][i];
    if (reached >= static_cast<unsigned>(wanted)) key = candidate;
    __syncthreads();
  }
  return key;
}

// Finds which nodes of the crossing class are among the `capacity` best. list has room for all
// nodes. All threads call.
template <int kThreads>
__device__ __forceinline__ Cut find_cut(CompileShared& shared, const Crossing& crossing,
                                        int capacity, const float* keys, int total,
                                        uint64_t* list) {
  const int wanted = capacity - static_cast<int>(crossing.count_before);
  if (wanted == 0) return {crossing.worth_class, ~0ull};
  const auto thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < total; at += kThreads) {
    const float key = keys[at];
    if (key == key && worth_class(key) == crossing.worth_class) {
      list[atomicAdd(&shared.listed, 1)] = ranked_key(key, static_cast<uint32_t>(at));
    }
  }
  __syncthreads();
  const int listed = shared.listed;
  if (listed > kThreads) {
    return {crossing.worth_class, select_key<kThreads>(shared, list, listed, wanted)};
  }
  if (thread < listed) {
    int greater = 0;
    for (int i = 0; i < listed; ++i) greater += list[i] > list[thread];
    if (greater == wanted - 1) shared.cut = list[thread];
  }
  __syncthreads();
  return {crossing.worth_class, shared.cut};
}

// How many nodes of sequence `seq` the cut keeps; one warp.
__device__ __forceinline__ int count_kept(const float* keys, int max_nodes, int seq,
                                          const Cut& cut) {
  int kept = 0;
  for (int i = static_cast<int>(threadIdx.x) & 31; i < max_nodes; i += 32) {
    const float key = keys[seq * max_nodes + i];
    kept += key == key && is_kept(cut, key, seq * max_nodes + i);
  }
  return __reduce_add_sync(kAllLanes, kept);
}

// Every warp, the same result, from node counts in shared memory.
__device__ __forceinline__ Batch count_batch(const int* node_counts, int num_seqs) {
  int live = 0;
  int nodes = 0;
  for (int s = static_cast<int>(threadIdx.x) & 31; s < num_seqs; s += 32) {
    live += node_counts[s] >= 0;
    nodes += max(node_counts[s], 0);
  }
  return {__reduce_add_sync(kAllLanes, live), __reduce_add_sync(kAllLanes, nodes)};
}

// grid: one block per sequence (at least one)
template <int kThreads>
__global__ __launch_bounds__(kThreads) void compile_batch_kernel(
    const __grid_constant__ CompileTreeParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ __align__(16) CompileShared shared;
  __shared__ int rows_of[kMaxCompileSeqs];  // node counts, then rows, of every sequence
  const auto seq = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const int max_nodes = params.trees.max_nodes;
  const int total = params.num_seqs * max_nodes;
  auto* list = reinterpret_cast<uint64_t*>(memory);
  auto* keys = reinterpret_cast<float*>(list + total);
  const TreeView view = make_view(reinterpret_cast<int32_t*>(keys + total), max_nodes);
  for (int i = thread; i < kWorthClasses; i += kThreads) {
    shared.count[i] = 0;
    shared.worth[i] = 0;
  }
  if (thread == 0) shared.listed = 0;
  __syncthreads();
  grid_dependency_wait();
  grid_dependency_launch();
  // The last warps take the tree: with few sequences they have nothing else to do.
  const int back = kThreads - 1 - thread;
  const Bucket bucket = load_bucket(params);
  const int32_t start = seq < params.num_seqs ? params.context_len[seq] : 0;
  const int32_t own_count = thread < params.num_seqs ? __ldcg(params.trees.counts + thread) : 0;
  load_worth<kThreads>(params, shared, keys);
  if (seq < params.num_seqs) load_tree(params, view, seq, start, back, kThreads);
  if (thread < params.num_seqs) rows_of[thread] = own_count;
  __syncthreads();
  // Whoever draws the last ticket knows that all blocks have read the counts.
  const int drawn = thread == 0 ? atomicAdd(params.ticket, 1) : 0;
  const int count = seq < params.num_seqs ? rows_of[seq] : -1;
  const Batch batch = count_batch(rows_of, params.num_seqs);
  const int capacity = lane_capacity(params, bucket, batch);
  raise_ancestors(view, 1, count, back, kThreads);
  find_crossings<kThreads>(shared, capacity, batch.nodes,
                           [&] { raise_ancestors(view, 2, count, back, kThreads); });
  const int lane = thread & 31;
  const float units = capacity >= batch.nodes ? static_cast<float>(shared.total_worth)
                                              : shared.crossings[lane].units;
  const Choice choice = choose_bucket(params, bucket, batch, capacity, units);
  raise_ancestors(view, 3, count, back, kThreads);
  Cut cut{kWorthClasses, 0};
  if (choice.bucket < 0 && params.cost_ms != nullptr) {
    cut = {-1, 0};  // roots only
  } else if (choice.capacity < batch.nodes) {
    cut = find_cut<kThreads>(shared, shared.crossings[max(choice.bucket, 0)], choice.capacity, keys,
                             total, list);
  }
  // Rows of every sequence: the kept nodes and the root, 0 for an empty place.
  for (int s = thread / 32; s < params.num_seqs; s += kThreads / 32) {
    const int kept = count_kept(keys, max_nodes, s, cut);
    if (lane == 0) rows_of[s] = rows_of[s] < 0 ? 0 : kept + 1;
  }
  if (params.max_path > 16) {
    __syncthreads();
    raise_ancestors(view, 4, count, back, kThreads);
  }
  __syncthreads();
  int first = 0;
  int live_rows = 0;
  for (int s = lane; s < params.num_seqs; s += 32) {
    first += s < seq ? rows_of[s] : 0;
    live_rows += rows_of[s];
  }
  first = __reduce_add_sync(kAllLanes, first);
  live_rows = __reduce_add_sync(kAllLanes, live_rows);
  if (count >= 0) write_rows(params, view, seq, start, first, rows_of[seq]);
  write_padding(params, live_rows);
  if (thread == 0 && seq < params.num_seqs) params.row_offsets[seq] = first;
  const bool last = thread == 0 && drawn == static_cast<int>(gridDim.x) - 1;
  if (__syncthreads_or(last) == 0) return;
  for (int s = thread; s < params.num_seqs; s += kThreads) {
    params.trees.counts[s] = rows_of[s] - 1;
  }
  if (thread != 0) return;
  *params.ticket = 0;
  params.row_offsets[params.num_seqs] = live_rows;
  if (params.chosen != nullptr) {
    params.chosen[0] = choice.bucket;
    params.chosen[1] = live_rows;
  }
}

// ---- One sequence: pop order is the merge order

// First warp: prefix[n] = worth in units of the first n nodes. Returns the choice.
__device__ __forceinline__ Choice cut_single(const CompileTreeParams& params, int count,
                                             const Bucket& bucket, uint32_t* prefix) {
  constexpr int kUnroll = 4;
  const int lane = static_cast<int>(threadIdx.x);
  const int max_nodes = params.trees.max_nodes;
  uint32_t carry = 0;
  if (lane == 0) prefix[0] = 0;
  for (int begin = 0; begin < max_nodes; begin += kUnroll * 32) {
    float scores[kUnroll];
    int depths[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int node = min(begin + u * 32 + lane + 1, max_nodes);
      scores[u] = params.trees.scores[node];
      depths[u] = params.calibration == nullptr ? 0 : params.trees.depths[node];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int node = begin + u * 32 + lane + 1;
      if (begin + u * 32 >= count) break;
      uint32_t units = node <= count ? worth_units(log_worth(params, scores[u], depths[u])) : 0u;
#pragma unroll
      for (int hop = 1; hop < 32; hop *= 2) {
        const uint32_t from = __shfl_up_sync(kAllLanes, units, hop);
        if (lane >= hop) units += from;
      }
      if (node <= count) prefix[node] = carry + units;
      carry += __shfl_sync(kAllLanes, units, 31);
    }
  }
  __syncwarp();
  const int capacity = lane_capacity(params, bucket, {1, count});
  return choose_bucket(params, bucket, {1, count}, capacity,
                       static_cast<float>(prefix[max(capacity, 0)]));
}

template <int kThreads>
__global__ __launch_bounds__(kThreads) void compile_single_kernel(
    const __grid_constant__ CompileTreeParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Choice shared_choice;
  auto* prefix = reinterpret_cast<uint32_t*>(memory);
  const TreeView view = make_view(reinterpret_cast<int32_t*>(prefix + params.trees.max_nodes + 1),
                                  params.trees.max_nodes);
  const auto thread = static_cast<int>(threadIdx.x);
  grid_dependency_wait();
  grid_dependency_launch();
  const int count = params.trees.counts[0];
  const int32_t start = params.context_len[0];
  if (thread >= 32) {
    load_tree(params, view, 0, start, thread - 32, kThreads - 32);
    for (int level = 1; level < kAncestorLevels && 1 << level < params.max_path; ++level) {
      named_barrier_sync(1, kThreads - 32);
      raise_ancestors(view, level, count, thread - 32, kThreads - 32);
    }
  } else {
    const Bucket bucket = load_bucket(params);
    Choice choice{-1, 0};
    if (count >= 0) choice = cut_single(params, count, bucket, prefix);
    if (thread == 0) shared_choice = choice;
  }
  __syncthreads();
  const int rows = count >= 0 ? shared_choice.capacity + 1 : 0;
  write_rows(params, view, 0, start, 0, rows);
  write_padding(params, rows);
  if (thread != 0) return;
  if (count >= 0) params.trees.counts[0] = rows - 1;
  params.row_offsets[0] = 0;
  params.row_offsets[1] = rows;
  if (params.chosen != nullptr) {
    params.chosen[0] = count >= 0 ? shared_choice.bucket : -1;
    params.chosen[1] = rows;
  }
}

}  // namespace coppice::kernels
