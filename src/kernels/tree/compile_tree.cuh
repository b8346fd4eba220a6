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

inline constexpr int kCompileThreads = 512;
inline constexpr int kSingleThreads = 128;
inline constexpr int kCompileWarps = kCompileThreads / 32;
inline constexpr int kWorthClasses = 2048;
inline constexpr float kClassesPerNat = 100.0f;
inline constexpr float kWorthUnits = 262144.0f;  // 2^18 units of probability: integer sums
inline constexpr unsigned kAllLanes = 0xffffffffu;

struct CompileShared {
  uint32_t count[kWorthClasses];  // nodes per class, then inclusive prefix sums
  uint32_t worth[kWorthClasses];  // their worth in units, the same
  uint32_t warp_sums[2][kCompileWarps];
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
  int rows;
  float cost;
};

__device__ __forceinline__ Bucket load_bucket(const CompileTreeParams& params) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  if (params.cost_ms == nullptr || lane >= params.num_buckets) return {-1, 1.0f};
  return {params.bucket_rows[lane], params.cost_ms[lane]};
}

struct Choice {
  int bucket;    // -1: no table, or no bucket holds all roots
  int capacity;  // nodes to keep
};

// One warp: expected(n) is the worth in units of the n best nodes.
template <typename Expected>
__device__ __forceinline__ Choice choose_bucket(int num_rows, const Bucket& bucket,
                                                const Batch& batch, Expected&& expected) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const bool has_table = __any_sync(kAllLanes, bucket.rows >= 0);
  const int own = min(bucket.rows - batch.live, batch.nodes);
  uint64_t key = 0;
  if (bucket.rows >= batch.live && bucket.rows <= num_rows) {
    const float tokens = static_cast<float>(batch.live) + expected(own) / kWorthUnits;
    key = ranked_key(__fdiv_rn(tokens, bucket.cost), static_cast<uint32_t>(lane));
  }
  const uint64_t best = warp_max(key);
  if (best == 0) return {-1, has_table ? 0 : min(max(num_rows - batch.live, 0), batch.nodes)};
  const int winner = static_cast<int>(ranked_key_index(best));
  return {winner, __shfl_sync(kAllLanes, own, winner)};
}

// ---- Several sequences

// Loads the worth of all nodes: merge keys (least log-worth up to the node, NaN where there is
// none) to shared memory, and the histograms. A warp owns whole sequences, 32 nodes a step.
__device__ __forceinline__ void load_worth(const CompileTreeParams& params, CompileShared& shared,
                                           float* keys) {
  constexpr int kUnroll = 4;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int max_nodes = params.trees.max_nodes;
  const int parts = (max_nodes + 31) / 32;
  const int sequences = (params.num_seqs - warp + kCompileWarps - 1) / kCompileWarps;
  float least = 0;
  for (int begin = 0; begin < sequences * parts; begin += kUnroll) {
    float scores[kUnroll];
    int depths[kUnroll];
    int counts[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int step = min(begin + u, sequences * parts - 1);
      const int seq = warp + step / parts * kCompileWarps;
      const int node = min(step % parts * 32 + lane, max_nodes - 1) + 1;
      const int64_t at = static_cast<int64_t>(seq) * (max_nodes + 1) + node;
      counts[u] = __ldcg(params.trees.counts + seq);
      scores[u] = params.trees.scores[at];
      depths[u] = params.calibration == nullptr ? 0 : params.trees.depths[at];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int step = begin + u;
      if (step >= sequences * parts) break;
      const int seq = warp + step / parts * kCompileWarps;
      const int index = step % parts * 32 + lane;  // node - 1
      const bool inside = index < counts[u];
      const float own = inside ? log_worth(params, scores[u], depths[u]) : INFINITY;
      float key = own;
#pragma unroll
      for (int hop = 1; hop < 32; hop *= 2) {
        const float from = __shfl_up_sync(kAllLanes, key, hop);
        if (lane >= hop) key = fminf(key, from);
      }
      if (step % parts != 0) key = fminf(key, least);
      least = __shfl_sync(kAllLanes, key, 31);
      if (index < max_nodes) keys[seq * max_nodes + index] = inside ? key : NAN;
      if (!inside) continue;
      atomicAdd(&shared.count[worth_class(key)], 1u);
      atomicAdd(&shared.worth[worth_class(key)], worth_units(own));
    }
  }
}

// Turns the histograms into inclusive prefix sums. Ends with a barrier.
__device__ __forceinline__ void scan_classes(CompileShared& shared) {
  static_assert(kWorthClasses == 4 * kCompileThreads);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint4* counts = reinterpret_cast<uint4*>(shared.count) + threadIdx.x;
  uint4* worths = reinterpret_cast<uint4*>(shared.worth) + threadIdx.x;
  uint4 c = *counts;
  uint4 w = *worths;
  c.y += c.x, c.z += c.y, c.w += c.z;
  w.y += w.x, w.z += w.y, w.w += w.z;
  uint32_t count = c.w;
  uint32_t worth = w.w;
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
  const bool before = lane < warp;
  count += __reduce_add_sync(kAllLanes, before ? shared.warp_sums[0][lane & 15] : 0u) - c.w;
  worth += __reduce_add_sync(kAllLanes, before ? shared.warp_sums[1][lane & 15] : 0u) - w.w;
  *counts = {c.x + count, c.y + count, c.z + count, c.w + count};
  *worths = {w.x + worth, w.y + worth, w.z + worth, w.w + worth};
  __syncthreads();
}

// First class whose inclusive count exceeds capacity (capacity < all nodes).
__device__ __forceinline__ int crossing_class(const CompileShared& shared, int capacity) {
  int low = 0;
#pragma unroll
  for (int step = kWorthClasses / 2; step > 0; step /= 2) {
    if (shared.count[low + step - 1] <= static_cast<uint32_t>(capacity)) low += step;
  }
  return low;
}

// Worth in units of the best `capacity` nodes.
__device__ __forceinline__ float expected_units(const CompileShared& shared, const Batch& batch,
                                                int capacity) {
  if (capacity >= batch.nodes) return static_cast<float>(shared.worth[kWorthClasses - 1]);
  const int at = crossing_class(shared, capacity);
  const uint32_t count_before = at == 0 ? 0 : shared.count[at - 1];
  const uint32_t worth_before = at == 0 ? 0 : shared.worth[at - 1];
  const auto taken = static_cast<float>(static_cast<uint32_t>(capacity) - count_before);
  const auto size = static_cast<float>(shared.count[at] - count_before);
  const auto worth = static_cast<float>(shared.worth[at] - worth_before);
  return __fadd_rn(static_cast<float>(worth_before), __fdiv_rn(__fmul_rn(taken, worth), size));
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
__device__ __forceinline__ uint64_t select_key(CompileShared& shared, const uint64_t* list,
                                               int listed, int wanted) {
  const auto thread = static_cast<int>(threadIdx.x);
  uint64_t key = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t candidate = key | 1ull << bit;
    unsigned reached = 0;
    for (int i = thread; i < listed; i += kCompileThreads) reached += list[i] >= candidate;
    reached = __reduce_add_sync(kAllLanes, reached);
    if ((thread & 31) == 0) shared.warp_sums[0][thread / 32] = reached;
    __syncthreads();
    reached = 0;
    for (int i = 0; i < kCompileWarps; ++i) reached += shared.warp_sums[0][i];
    if (reached >= static_cast<unsigned>(wanted)) key = candidate;
    __syncthreads();
  }
  return key;
}

// Finds which nodes of the crossing class are among the `capacity` best. list has room for all
// nodes. All threads call.
__device__ __forceinline__ Cut find_cut(CompileShared& shared, const Batch& batch, int capacity,
                                        const float* keys, int total, uint64_t* list) {
  if (capacity >= batch.nodes) return {kWorthClasses, 0};
  const int crossing = crossing_class(shared, capacity);
  const int before = crossing == 0 ? 0 : static_cast<int>(shared.count[crossing - 1]);
  const int wanted = capacity - before;
  if (wanted == 0) return {crossing, ~0ull};
  const auto thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < total; at += kCompileThreads) {
    const float key = keys[at];
    if (key == key && worth_class(key) == crossing) {
      list[atomicAdd(&shared.listed, 1)] = ranked_key(key, static_cast<uint32_t>(at));
    }
  }
  __syncthreads();
  const int listed = shared.listed;
  if (listed > kCompileThreads) return {crossing, select_key(shared, list, listed, wanted)};
  if (thread < listed) {
    int greater = 0;
    for (int i = 0; i < listed; ++i) greater += list[i] > list[thread];
    if (greater == wanted - 1) shared.cut = list[thread];
  }
  __syncthreads();
  return {crossing, shared.cut};
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
__global__ __launch_bounds__(kCompileThreads) void compile_batch_kernel(
    const __grid_constant__ CompileTreeParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ __align__(16) CompileShared shared;
  __shared__ int rows_of[kCompileThreads];  // node counts, then rows, of every sequence
  const auto seq = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const int max_nodes = params.trees.max_nodes;
  const int total = params.num_seqs * max_nodes;
  auto* list = reinterpret_cast<uint64_t*>(memory);
  auto* keys = reinterpret_cast<float*>(list + total);
  const TreeView view = make_view(reinterpret_cast<int32_t*>(keys + total), max_nodes);
  for (int i = thread; i < kWorthClasses; i += kCompileThreads) {
    shared.count[i] = 0;
    shared.worth[i] = 0;
  }
  if (thread == 0) shared.listed = 0;
  __syncthreads();
  grid_dependency_wait();
  grid_dependency_launch();
  const Bucket bucket = load_bucket(params);
  const int32_t start = seq < params.num_seqs ? params.context_len[seq] : 0;
  const int32_t own_count = thread < params.num_seqs ? __ldcg(params.trees.counts + thread) : 0;
  load_worth(params, shared, keys);
  // The last warps take the tree: with few sequences they have nothing else to do.
  if (seq < params.num_seqs) {
    load_tree(params, view, seq, start, kCompileThreads - 1 - thread, kCompileThreads);
  }
  if (thread < params.num_seqs) rows_of[thread] = own_count;
  __syncthreads();
  // Whoever draws the last ticket knows that all blocks have read the counts.
  const int drawn = thread == 0 ? atomicAdd(params.ticket, 1) : 0;
  const int count = seq < params.num_seqs ? rows_of[seq] : -1;
  const Batch batch = count_batch(rows_of, params.num_seqs);
  make_paths(view, count, params.max_path, thread, kCompileThreads);
  scan_classes(shared);
  const Choice choice = choose_bucket(params.num_rows, bucket, batch, [&](int capacity) {
    return expected_units(shared, batch, capacity);
  });
  const Cut cut = find_cut(shared, batch, choice.capacity, keys, total, list);
  // Rows of every sequence: the kept nodes and the root, 0 for an empty place.
  for (int s = thread / 32; s < params.num_seqs; s += kCompileWarps) {
    const int kept = count_kept(keys, max_nodes, s, cut);
    if ((thread & 31) == 0) rows_of[s] = rows_of[s] < 0 ? 0 : kept + 1;
  }
  __syncthreads();
  int first = 0;
  int live_rows = 0;
  for (int s = thread & 31; s < params.num_seqs; s += 32) {
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
  for (int s = thread; s < params.num_seqs; s += kCompileThreads) {
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
  return choose_bucket(params.num_rows, bucket, {1, count},
                       [&](int capacity) { return static_cast<float>(prefix[capacity]); });
}

__global__ __launch_bounds__(kSingleThreads) void compile_single_kernel(
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
    load_tree(params, view, 0, start, thread - 32, kSingleThreads - 32);
    named_barrier_sync(1, kSingleThreads - 32);
    make_paths(view, count, params.max_path, thread - 32, kSingleThreads - 32);
  } else {
    const Bucket bucket = load_bucket(params);
    const Choice choice = cut_single(params, count, bucket, prefix);
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
