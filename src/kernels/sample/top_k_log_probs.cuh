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
    const float4 low = __ldg(reinterpret_cast<const float4*>(source));
    const float4 high = __ldg(reinterpret_cast<const float4*>(source) + 1);
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
    const uint4 raw = __ldg(reinterpret_cast<const uint4*>(source));
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

// One warp: group maxima, maximum and sum of exponentials of 1024 consecutive logits.
template <typename Logits>
__device__ __forceinline__ void reduce_chunk(const TopKKernelParams& params, int row, int chunk) {
  constexpr int kVectors = kTopKChunk / 256;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const auto* source = row_logits<Logits>(params, row);
  Logits logits[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int first = chunk * kTopKChunk + j * 256 + lane * 8;
    if (first < params.op.vocab_size) {
      logits[j].load(source + first);
    } else {
      logits[j].fill_missing();
    }
  }
  float* maxima = params.maxima + static_cast<int64_t>(row) * params.num_groups + chunk * 16;
  float maximum = -INFINITY;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    logits[j].clean();
    float group = logits[j].maximum();
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
      group = fmaxf(group, __shfl_xor_sync(0xffffffffu, group, step));
    }
    if ((lane & 7) == 0) maxima[j * 4 + lane / 8] = group;
    maximum = fmaxf(maximum, group);
  }
  maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 8));
  maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 16));
  const float base = maximum == -INFINITY ? 0.0f : maximum;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      sum = __fadd_rn(sum, exp2_approx(__fmul_rn(__fsub_rn(logits[j].get(e), base), kLog2E)));
    }
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
  }
  if (lane == 0) {
    params.sums[static_cast<int64_t>(row) * params.num_chunks + chunk] = {maximum, sum};
  }
}

// Maximum and logarithm of the sum of exp(x - maximum) over the row, from one chunk per thread. All
// threads get the result; the order of additions is fixed.
__device__ __forceinline__ float2 merge_sums(const float2& own, float* scratch) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kWarps = kTopKThreads / 32;
  float maximum = own.x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
  }
  if (lane == 0) scratch[warp] = maximum;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) maximum = fmaxf(maximum, scratch[i]);
  const float base = maximum == -INFINITY ? 0.0f : maximum;
  float sum = __fmul_rn(own.y, exp2_approx(__fmul_rn(__fsub_rn(own.x, base), kLog2E)));
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
  }
  if (lane == 0) scratch[kWarps + warp] = sum;
  __syncthreads();
  sum = scratch[kWarps];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) sum = __fadd_rn(sum, scratch[kWarps + i]);
  return {base, logf(sum)};
}

// Group maxima of a thread: groups threadIdx.x + i * kTopKThreads.
inline constexpr int kMaximaPerThread = (1 << 18) / kTopKGroup / kTopKThreads;

struct ThreadMaxima {
  float values[kMaximaPerThread];
  int num_groups;

  __device__ int group(int i) const { return static_cast<int>(threadIdx.x) + i * kTopKThreads; }
  __device__ bool inside(int i) const { return group(i) < num_groups; }
};

// A value that at least k group maxima reach: each warp gives the ceil(k / warps)-th largest of its
// threads' maxima, the least of these serves.
__device__ __forceinline__ uint32_t quick_threshold(BlockTopK& shared, const ThreadMaxima& maxima,
                                                    int k) {
  constexpr int kWarps = kTopKThreads / 32;
  const auto thread = static_cast<int>(threadIdx.x);
  uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < kMaximaPerThread; ++i) {
    if (maxima.inside(i)) own = max(own, order_key(maxima.values[i]));
  }
  auto* keys = reinterpret_cast<uint32_t*>(shared.maxima);
  auto* thresholds = keys + kTopKThreads;
  keys[thread] = own;
  __syncwarp();
  int rank = 0;
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const uint4 other = *reinterpret_cast<const uint4*>(keys + (thread & ~31) + i);
    const uint32_t others[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      rank += others[j] > own || (others[j] == own && i + j < (thread & 31));
    }
  }
  if (rank == (k + kWarps - 1) / kWarps - 1) thresholds[thread / 32] = own;
  __syncthreads();
  uint32_t threshold = thresholds[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) threshold = min(threshold, thresholds[i]);
  return threshold;
}

// Appends elements of groups[first .. last) whose value reaches the threshold; the count may exceed
// the list's capacity, entries beyond it are dropped. exact: (value, group) must reach `exact` too.
template <typename Logits>
__device__ __forceinline__ void collect(const TopKKernelParams& params, int row, uint32_t threshold,
                                        uint64_t exact, const int* groups, int first, int last,
                                        BlockTopK& shared) {
  constexpr int kUnroll = 4;
  constexpr int kVectors = kTopKGroup / 8;
  const auto* source = row_logits<Logits>(params, row);
  const int total = (last - first) * kVectors;
  for (int begin = 0; begin < total; begin += kUnroll * kTopKThreads) {
    Logits logits[kUnroll];
    int ids[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int item = begin + u * kTopKThreads + static_cast<int>(threadIdx.x);
      ids[u] = item < total ? groups[first + item / kVectors] * kTopKGroup + item % kVectors * 8
                            : params.op.vocab_size;
      if (ids[u] < params.op.vocab_size) logits[u].load(source + ids[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (ids[u] >= params.op.vocab_size) continue;
      logits[u].clean();
      if (order_key(logits[u].maximum()) < threshold) continue;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float value = logits[u].get(e);
        const auto id = static_cast<uint32_t>(ids[u] + e);
        if (order_key(value) < threshold || ranked_key(value, id / kTopKGroup) < exact) continue;
        const int at = atomicAdd(&shared.count, 1);
        if (at < kTopKListCapacity) shared.list[at] = ranked_key(value, id);
      }
    }
  }
}

// Lists all elements that can be among the k largest, by values alone. False when there are too
// many of them (many equal logits).
template <typename Logits>
__device__ __forceinline__ bool list_by_value(const TopKKernelParams& params, int row,
                                              const ThreadMaxima& maxima, BlockTopK& shared,
                                              int* groups) {
  if (threadIdx.x == 0) shared.count = 0;
  const uint32_t threshold = quick_threshold(shared, maxima, params.op.k);
#pragma unroll
  for (int i = 0; i < kMaximaPerThread; ++i) {
    if (!maxima.inside(i) || order_key(maxima.values[i]) < threshold) continue;
    const int at = atomicAdd(&shared.count, 1);
    if (at < kMaxCandidateGroups) groups[at] = maxima.group(i);
  }
  __syncthreads();
  const int num_groups = shared.count;
  __syncthreads();
  if (num_groups > kMaxCandidateGroups) return false;
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  collect<Logits>(params, row, threshold, 0, groups, 0, num_groups, shared);
  __syncthreads();
  return shared.count <= kTopKListCapacity;
}

// The same by (value, group), which are distinct: at most k per thread survive, and batches bound
// the list.
template <typename Logits>
__device__ __noinline__ void list_exactly(const TopKKernelParams& params, int row,
                                          const ThreadMaxima& maxima, BlockTopK& shared,
                                          int* groups) {
  constexpr int kStep = (kTopKListCapacity - kTopKThreads) / kTopKGroup;
  uint64_t largest = 0;
  for (int i = 0; i < kMaximaPerThread; ++i) {
    if (!maxima.inside(i)) continue;
    const uint64_t key = ranked_key(maxima.values[i], static_cast<uint32_t>(maxima.group(i)));
    largest = key > largest ? key : largest;
  }
  const uint64_t threshold = kth_thread_maximum(shared, largest, params.op.k);
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  for (int i = 0; i < kMaximaPerThread; ++i) {
    if (!maxima.inside(i)) continue;
    const auto group = static_cast<uint32_t>(maxima.group(i));
    if (ranked_key(maxima.values[i], group) < threshold) continue;
    groups[atomicAdd(&shared.count, 1)] = static_cast<int>(group);
  }
  __syncthreads();
  const int num_groups = shared.count;
  __syncthreads();
  if (threadIdx.x == 0) shared.count = 0;
  for (int first = 0; first < num_groups; first += kStep) {
    __syncthreads();
    collect<Logits>(params, row, static_cast<uint32_t>(threshold >> 32), threshold, groups, first,
                    min(first + kStep, num_groups), shared);
    shrink_list(shared, params.op.k);
  }
}

// Writes the k largest of a list of at most kTopKThreads keys in order.
__device__ __forceinline__ void write_top_k(BlockTopK& shared, int k, int id_offset, float2 log_sum,
                                            int32_t* ids, float* values) {
  const int n = shared.count;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < n) {
    const uint64_t key = shared.list[thread];
    const int rank = count_greater(shared.list, n, key);
    if (rank < k) {
      const float value = ranked_key_value(key);
      const bool possible = value > -INFINITY;
      ids[rank] = possible ? static_cast<int32_t>(ranked_key_index(key)) + id_offset : -1;
      values[rank] = __fsub_rn(__fsub_rn(value, log_sum.x), log_sum.y);
    }
  } else if (thread < k) {
    ids[thread] = -1;
    values[thread] = -INFINITY;
  }
}

template <typename Logits>
__device__ __forceinline__ void finish_row(const TopKKernelParams& params, int row,
                                           BlockTopK& shared, int* groups, float* scratch) {
  const auto thread = static_cast<int>(threadIdx.x);
  float2 sum = {-INFINITY, 0};
  if (thread < params.num_chunks) {
    sum = __ldcg(params.sums + static_cast<int64_t>(row) * params.num_chunks + thread);
  }
  ThreadMaxima maxima;
  maxima.num_groups = params.num_groups;
  const float* source = params.maxima + static_cast<int64_t>(row) * params.num_groups;
#pragma unroll
  for (int i = 0; i < kMaximaPerThread; ++i) {
    maxima.values[i] = maxima.inside(i) ? __ldcg(source + maxima.group(i)) : -INFINITY;
  }
  const float2 log_sum = merge_sums(sum, scratch);
  if (!list_by_value<Logits>(params, row, maxima, shared, groups)) {
    list_exactly<Logits>(params, row, maxima, shared, groups);
  }
  shrink_list(shared, params.op.k);
  const int64_t out = static_cast<int64_t>(row) * params.op.k;
  write_top_k(shared, params.op.k, params.op.vocab_offset,
              params.op.keep_logits ? float2{0, 0} : log_sum, params.op.ids + out,
              params.op.log_probs + out);
  if (thread == 0 && params.op.log_sum_exp != nullptr)
    params.op.log_sum_exp[row] = __fadd_rn(log_sum.x, log_sum.y);
}

// grid: (blocks per row, rows)
template <typename Logits, int kBlocksPerSm>
__global__ __launch_bounds__(kTopKThreads, kBlocksPerSm) void top_k_log_probs_kernel(
    const __grid_constant__ TopKKernelParams params) {
  __shared__ __align__(16) BlockTopK shared;
  __shared__ int groups[kMaxCandidateGroups];
  __shared__ float scratch[2 * kTopKThreads / 32];
  __shared__ bool last;
  grid_dependency_wait();
  grid_dependency_launch();
  const int row = static_cast<int>(blockIdx.y);
  const int chunk =
      static_cast<int>(blockIdx.x) * kTopKChunksPerBlock + static_cast<int>(threadIdx.x) / 32;
  if (chunk < params.num_chunks) reduce_chunk<Logits>(params, row, chunk);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(params.arrivals + row, 1) == static_cast<int>(gridDim.x) - 1;
    if (last) params.arrivals[row] = 0;
    __threadfence();
  }
  __syncthreads();
  if (last) finish_row<Logits>(params, row, shared, groups, scratch);
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
  write_top_k(shared, params.k, 0, log_sum, params.out_ids + static_cast<int64_t>(row) * params.k,
              params.out_log_probs + static_cast<int64_t>(row) * params.k);
}

}  // namespace coppice::kernels
