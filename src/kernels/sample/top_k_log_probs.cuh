// One pass over the logits, then one block per row (the last of the row's blocks to finish) selects
// from group maxima: the k largest elements lie in the k groups with the largest maxima, so only
// those groups are read again.
#pragma once

#include <cuda_bf16.h>

#include "kernels/common/grid_dependency.cuh"
#include "kernels/sample/block_top_k.cuh"
#include "kernels/sample/order_key.cuh"
#include "kernels/sample/top_k_log_probs.h"
#include "kernels/sample/top_k_log_probs_config.h"

namespace coppice::kernels {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLargestLogit = 3.3895313892515355e38f;  // of bf16
inline constexpr int kMaxCandidateGroups = 1024;

struct TopKKernelParams {
  TopKLogProbsParams op;
  int num_chunks;
  int num_groups;
  int* arrivals;  // [max_rows]
  float2* sums;   // [num_rows, num_chunks]: maximum, sum of exp(x - maximum)
  float* maxima;  // [num_rows, num_groups]
};

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// NaN becomes -inf, +inf (and what bf16 cannot hold) the largest finite bf16.
__device__ __forceinline__ float clean_logit(float x) {
  return fminf(fmaxf(x, -INFINITY), kLargestLogit);
}

// Eight consecutive logits.
struct FloatLogits {
  using Element = float;
  float values[8];

  __device__ void load(const float* source) {
    const float4 low = *reinterpret_cast<const float4*>(source);
    const float4 high = reinterpret_cast<const float4*>(source)[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
  }
  __device__ void fill_missing() {
    for (float& x : values) x = -INFINITY;
  }
  __device__ void clean() {
    for (float& x : values) x = clean_logit(x);
  }
  __device__ float get(int i) const { return values[i]; }
  __device__ float maximum() const {
    return fmaxf(fmaxf(fmaxf(values[0], values[1]), fmaxf(values[2], values[3])),
                 fmaxf(fmaxf(values[4], values[5]), fmaxf(values[6], values[7])));
  }
};

struct Bf16Logits {
  using Element = __nv_bfloat16;
  uint32_t words[4];

  __device__ void load(const __nv_bfloat16* source) {
    const uint4 raw = *reinterpret_cast<const uint4*>(source);
    words[0] = raw.x, words[1] = raw.y, words[2] = raw.z, words[3] = raw.w;
  }
  __device__ void fill_missing() {
    for (uint32_t& word : words) word = 0xff80ff80u;
  }
  __device__ void clean() {
    for (uint32_t& word : words) {
      asm("max.bf16x2 %0, %0, %1;\n\tmin.bf16x2 %0, %0, %2;"
          : "+r"(word)
          : "r"(0xff80ff80u), "r"(0x7f7f7f7fu));
    }
  }
  __device__ float get(int i) const {
    return __uint_as_float((i & 1) == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
  __device__ float maximum() const {
    uint32_t low, high;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(low) : "r"(words[0]), "r"(words[1]));
    asm("max.bf16x2 %0, %1, %2;" : "=r"(high) : "r"(words[2]), "r"(words[3]));
    asm("max.bf16x2 %0, %0, %1;" : "+r"(low) : "r"(high));
    return fmaxf(__uint_as_float(low << 16), __uint_as_float(low & 0xffff0000u));
  }
};

template <typename Logits>
__device__ __forceinline__ const typename Logits::Element* row_logits(
    const TopKKernelParams& params, int row) {
  return static_cast<const typename Logits::Element*>(params.op.logits) +
         row * params.op.row_stride;
}

inline constexpr int kVectorsPerChunk = kTopKChunk / 256;

// One warp: its part of 1024 consecutive logits; missing ones are -inf.
template <typename Logits>
__device__ __forceinline__ void load_chunk(const TopKKernelParams& params, int row, int chunk,
                                           Logits (&logits)[kVectorsPerChunk]) {
  const auto* source = row_logits<Logits>(params, row);
#pragma unroll
  for (int j = 0; j < kVectorsPerChunk; ++j) {
    const int first = chunk * kTopKChunk + j * 256 + (static_cast<int>(threadIdx.x) & 31) * 8;
    if (first < params.op.vocab_size) {
      logits[j].load(source + first);
    } else {
      logits[j].fill_missing();
    }
  }
}

// One warp: group maxima, maximum and sum of exponentials of a chunk. store_maximum(group of the
// chunk, value) is called by the lane that knows it, store_sum(maximum, sum) by lane 0.
template <typename Logits, typename StoreMaximum, typename StoreSum>
__device__ __forceinline__ void reduce_chunk(Logits (&logits)[kVectorsPerChunk],
                                             StoreMaximum&& store_maximum, StoreSum&& store_sum) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  float maximum = -INFINITY;
#pragma unroll
  for (int j = 0; j < kVectorsPerChunk; ++j) {
    logits[j].clean();
    float group = logits[j].maximum();
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
      group = fmaxf(group, __shfl_xor_sync(0xffffffffu, group, step));
    }
    if ((lane & 7) == 0) store_maximum(j * 4 + lane / 8, group);
    maximum = fmaxf(maximum, group);
  }
  maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 8));
  maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 16));
  const float base = maximum == -INFINITY ? 0.0f : maximum;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectorsPerChunk; ++j) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      sum = __fadd_rn(sum, exp2_approx(__fmul_rn(__fsub_rn(logits[j].get(e), base), kLog2E)));
    }
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
  }
  if (lane == 0) store_sum(maximum, sum);
}

// What a row's chunks came to lies in global memory, or in the shared memory of the block that
// finishes the row.
template <bool kShared, typename T>
__device__ __forceinline__ T load_part(const T* part) {
  return kShared ? *part : __ldcg(part);
}

// One warp: maximum and logarithm of the sum of exp(x - maximum) over the row. Lane l adds chunks
// l, l + 32, ... in order, then the lanes meet in a fixed tree.
template <bool kShared>
__device__ __forceinline__ float2 merge_sums(const TopKKernelParams& params, int row) {
  constexpr int kPerLane = (1 << 18) / kTopKChunk / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const float2* sums = params.sums + static_cast<int64_t>(row) * params.num_chunks;
  float2 own[kPerLane];
  float maximum = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int chunk = lane + i * 32;
    own[i] = chunk < params.num_chunks ? load_part<kShared>(sums + chunk) : float2{-INFINITY, 0};
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) maximum = fmaxf(maximum, own[i].x);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
  }
  const float base = maximum == -INFINITY ? 0.0f : maximum;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const float scale = exp2_approx(__fmul_rn(__fsub_rn(own[i].x, base), kLog2E));
    sum = __fadd_rn(sum, __fmul_rn(own[i].y, scale));
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
  }
  return {base, logf(sum)};
}

// Group maxima of a thread: groups threadIdx.x + i * kTopKThreads.
inline constexpr int kMaximaPerThread = (1 << 18) / kTopKGroup / kTopKThreads;

__device__ __forceinline__ int group_of(int i) {
  return static_cast<int>(threadIdx.x) + i * kTopKThreads;
}

// A value that at least k group maxima reach: each warp gives the ceil(k / warps)-th largest of its
// threads' maxima, the least of these serves.
__device__ __forceinline__ float quick_threshold(BlockTopK& shared, float own, int k) {
  constexpr int kWarps = kTopKThreads / 32;
  const auto thread = static_cast<int>(threadIdx.x);
  auto* values = reinterpret_cast<float*>(shared.maxima);
  auto* thresholds = values + kTopKThreads;
  values[thread] = own;
  __syncwarp();
  int rank = 0;
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const float4 other = *reinterpret_cast<const float4*>(values + (thread & ~31) + i);
    const float others[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      rank += others[j] > own || (others[j] == own && i + j < (thread & 31));
    }
  }
  if (rank == (k + kWarps - 1) / kWarps - 1) thresholds[thread / 32] = own;
  __syncthreads();
  float threshold = thresholds[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) threshold = fminf(threshold, thresholds[i]);
  return threshold;
}

__device__ __forceinline__ float load_logit(const float* source) {
  return *source;
}
__device__ __forceinline__ float load_logit(const __nv_bfloat16* source) {
  return __bfloat162float(*source);
}

// Appends elements of groups[first .. last) that reach `least` to the list; the count may exceed
// the list's capacity, entries beyond it are dropped. (value, group) must reach `exact` too.
template <typename Logits>
__device__ __forceinline__ void collect(const TopKKernelParams& params, int row, float least,
                                        uint64_t exact, const int* groups, int first, int last,
                                        BlockTopK& shared) {
  constexpr int kUnroll = 4;
  constexpr int kVectors = kTopKGroup / 8;
  const auto* source = row_logits<Logits>(params, row);
  const int total = (last - first) * kVectors;
  const auto id_of = [&](int item) {
    return groups[first + item / kVectors] * kTopKGroup + item % kVectors * 8;
  };
  for (int begin = static_cast<int>(threadIdx.x); begin < total; begin += kUnroll * kTopKThreads) {
    Logits logits[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int item = begin + u * kTopKThreads;
      const int id = item < total ? id_of(item) : params.op.vocab_size;
      logits[u].fill_missing();
      if (id < params.op.vocab_size) logits[u].load(source + id);
    }
    uint32_t reaching = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      logits[u].clean();
#pragma unroll
      for (int e = 0; e < 8; ++e) reaching |= logits[u].get(e) >= least ? 1u << (8 * u + e) : 0u;
    }
    for (; reaching != 0; reaching &= reaching - 1) {
      const int bit = __ffs(static_cast<int>(reaching)) - 1;
      const int item = begin + bit / 8 * kTopKThreads;
      const int id = item < total ? id_of(item) + bit % 8 : params.op.vocab_size;
      if (id >= params.op.vocab_size) continue;
      const float value = clean_logit(load_logit(source + id));
      if (ranked_key(value, static_cast<uint32_t>(id / kTopKGroup)) < exact) continue;
      const int at = atomicAdd(&shared.count, 1);
      if (at < kTopKListCapacity) {
        shared.list[at] = ranked_key(value, static_cast<uint32_t>(id));
      }
    }
  }
}

// Lists all elements that can be among the k largest, by values alone. False when there are too
// many of them (many equal logits).
template <typename Logits, bool kShared>
__device__ __forceinline__ bool list_by_value(const TopKKernelParams& params, int row,
                                              BlockTopK& shared, int* groups) {
  const float* source = params.maxima + static_cast<int64_t>(row) * params.num_groups;
  float maxima[kMaximaPerThread];
#pragma unroll
  for (int i = 0; i < kMaximaPerThread; ++i) {
    maxima[i] =
        group_of(i) < params.num_groups ? load_part<kShared>(source + group_of(i)) : -INFINITY;
  }
  float own = maxima[0];
#pragma unroll
  for (int i = 1; i < kMaximaPerThread; ++i) own = fmaxf(own, maxima[i]);
  if (threadIdx.x == 0) shared.count = 0;
  const float least = quick_threshold(shared, own, params.op.k);
  uint32_t reaching = 0;
#pragma unroll
  for (int i = 0; i < kMaximaPerThread; ++i) {
    reaching |= group_of(i) < params.num_groups && maxima[i] >= least ? 1u << i : 0u;
  }
  for (; reaching != 0; reaching &= reaching - 1) {
    const int at = atomicAdd(&shared.count, 1);
    if (at < kMaxCandidateGroups) {
      groups[at] = group_of(__ffs(static_cast<int>(reaching)) - 1);
    }
  }
  __syncthreads();
  const int num_groups = shared.count;
  __syncthreads();
  if (num_groups > kMaxCandidateGroups) return false;
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  collect<Logits>(params, row, least, 0, groups, 0, num_groups, shared);
  __syncthreads();
  return shared.count <= kTopKListCapacity;
}

// The same by (value, group), which are distinct: at most k per thread survive, and batches bound
// the list.
template <typename Logits, bool kShared>
__device__ __noinline__ void list_exactly(const TopKKernelParams& params, int row,
                                          BlockTopK& shared, int* groups) {
  constexpr int kStep = (kTopKListCapacity - kTopKThreads) / kTopKGroup;
  const float* maxima = params.maxima + static_cast<int64_t>(row) * params.num_groups;
  const auto key_of = [&](int group) {
    return ranked_key(load_part<kShared>(maxima + group), static_cast<uint32_t>(group));
  };
  uint64_t largest = 0;
  for (int group = group_of(0); group < params.num_groups; group += kTopKThreads) {
    largest = max(largest, key_of(group));
  }
  const uint64_t threshold = kth_thread_maximum(shared, largest, params.op.k);
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  for (int group = group_of(0); group < params.num_groups; group += kTopKThreads) {
    if (key_of(group) >= threshold) groups[atomicAdd(&shared.count, 1)] = group;
  }
  __syncthreads();
  const int num_groups = shared.count;
  const float least = threshold == 0 ? -INFINITY : ranked_key_value(threshold);
  __syncthreads();
  if (threadIdx.x == 0) shared.count = 0;
  for (int first = 0; first < num_groups; first += kStep) {
    __syncthreads();
    collect<Logits>(params, row, least, threshold, groups, first, min(first + kStep, num_groups),
                    shared);
    shrink_list(shared, params.op.k);
  }
}

// Where in the output a list of at most kTopKThreads keys puts the thread's key; k or more:
// nowhere. All threads call.
__device__ __forceinline__ int rank_in_list(BlockTopK& shared) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int n = shared.count;
  const int padded = (n + kTopKUnroll - 1) / kTopKUnroll * kTopKUnroll;
  if (thread >= n && thread < padded) shared.list[thread] = 0;
  __syncthreads();
  return thread < n ? count_greater(shared.list, padded, shared.list[thread]) : INT32_MAX;
}

// Writes the k largest in order; places that the list does not fill get id -1.
__device__ __forceinline__ void write_top_k(const BlockTopK& shared, int rank, int k, int id_offset,
                                            float2 log_sum, int32_t* ids, float* values) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (rank < k) {
    const uint64_t key = shared.list[thread];
    const float value = ranked_key_value(key);
    const bool possible = value > -INFINITY;
    ids[rank] = possible ? static_cast<int32_t>(ranked_key_index(key)) + id_offset : -1;
    values[rank] = __fsub_rn(__fsub_rn(value, log_sum.x), log_sum.y);
  }
  if (thread >= shared.count && thread < k) {
    ids[thread] = -1;
    values[thread] = -INFINITY;
  }
}

template <typename Logits, bool kShared>
__device__ __forceinline__ void finish_row(const TopKKernelParams& params, int row,
                                           BlockTopK& shared, int* groups, float2* shared_sum) {
  if (!list_by_value<Logits, kShared>(params, row, shared, groups)) {
    list_exactly<Logits, kShared>(params, row, shared, groups);
  }
  shrink_list(shared, params.op.k);
  const int rank = rank_in_list(shared);
  // The last warp has no key to rank unless the list is full.
  if (threadIdx.x >= kTopKThreads - 32) {
    const float2 log_sum = merge_sums<kShared>(params, row);
    if (threadIdx.x == kTopKThreads - 1) *shared_sum = log_sum;
  }
  __syncthreads();
  const float2 log_sum = *shared_sum;
  const int64_t out = static_cast<int64_t>(row) * params.op.k;
  write_top_k(shared, rank, params.op.k, params.op.vocab_offset,
              params.op.keep_logits ? float2{0, 0} : log_sum, params.op.ids + out,
              params.op.log_probs + out);
  if (threadIdx.x == 0 && params.op.log_sum_exp != nullptr) {
    params.op.log_sum_exp[row] = __fadd_rn(log_sum.x, log_sum.y);
  }
}

// grid: (blocks per row, rows)
template <typename Logits, int kBlocksPerSm>
__global__ __launch_bounds__(kTopKThreads, kBlocksPerSm) void top_k_log_probs_kernel(
    const __grid_constant__ TopKKernelParams params) {
  __shared__ __align__(16) BlockTopK shared;
  __shared__ int groups[kMaxCandidateGroups];
  __shared__ float2 shared_sum;
  __shared__ bool last;
  grid_dependency_wait();
  grid_dependency_launch();
  const int row = static_cast<int>(blockIdx.y);
  const int chunk =
      static_cast<int>(blockIdx.x) * kTopKChunksPerBlock + static_cast<int>(threadIdx.x) / 32;
  if (chunk < params.num_chunks) {
    Logits logits[kVectorsPerChunk];
    load_chunk<Logits>(params, row, chunk, logits);
    float* maxima = params.maxima + static_cast<int64_t>(row) * params.num_groups + chunk * 16;
    reduce_chunk<Logits>(
        logits, [&](int group, float value) { maxima[group] = value; },
        [&](float maximum, float sum) {
          params.sums[static_cast<int64_t>(row) * params.num_chunks + chunk] = {maximum, sum};
        });
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(params.arrivals + row, 1) == static_cast<int>(gridDim.x) - 1;
    if (last) params.arrivals[row] = 0;
    __threadfence();
  }
  __syncthreads();
  if (last) finish_row<Logits, false>(params, row, shared, groups, &shared_sum);
}

// One block per row. Shards are added in shard order.
__global__ __launch_bounds__(kTopKThreads) void merge_top_k_kernel(MergeTopKParams params) {
  __shared__ __align__(16) BlockTopK shared;
  grid_dependency_wait();
  grid_dependency_launch();
  const int row = static_cast<int>(blockIdx.x);
  float maximum = -INFINITY;
  for (int s = 0; s < params.num_shards; ++s) {
    maximum = fmaxf(maximum, params.log_sum_exp[s * params.num_rows + row]);
  }
  const float base = maximum == -INFINITY ? 0.0f : maximum;
  float sum = 0;
  for (int s = 0; s < params.num_shards; ++s) {
    const float part = params.log_sum_exp[s * params.num_rows + row];
    sum = __fadd_rn(sum, exp2_approx(__fmul_rn(__fsub_rn(part, base), kLog2E)));
  }
  const float2 log_sum = {base, logf(sum)};
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < params.num_shards * params.k; i += kTopKThreads) {
    const int64_t at =
        (static_cast<int64_t>(i / params.k) * params.num_rows + row) * params.k + i % params.k;
    if (params.ids[at] < 0) continue;
    shared.list[atomicAdd(&shared.count, 1)] =
        ranked_key(params.logits[at], static_cast<uint32_t>(params.ids[at]));
  }
  shrink_list(shared, params.k);
  write_top_k(shared, rank_in_list(shared), params.k, 0, log_sum,
              params.out_ids + static_cast<int64_t>(row) * params.k,
              params.out_log_probs + static_cast<int64_t>(row) * params.k);
}

}  // namespace coppice::kernels
