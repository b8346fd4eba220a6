// One pass over the logits, then one block per row (the last of the row's blocks to finish) selects
// from group maxima: the k largest elements lie in the k groups with the largest maxima, so only
// those groups are read again.
#pragma once

#include <cuda_bf16.h>

#include "kernels/sample/block_top_k.cuh"
#include "kernels/sample/launch.cuh"
#include "kernels/sample/order_key.cuh"
#include "kernels/sample/top_k_log_probs.h"
#include "kernels/sample/top_k_log_probs_config.h"

namespace coppice::kernels {

inline constexpr float kLog2E = 1.4426950408889634f;
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

// NaN becomes -inf, +inf the largest finite value.
__device__ __forceinline__ float clean_logit(float x) {
  return fminf(fmaxf(x, -INFINITY), 3.402823466e38f);
}

__device__ __forceinline__ void load8(const float* source, float (&values)[8]) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(source));
  const float4 high = __ldg(reinterpret_cast<const float4*>(source) + 1);
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ __forceinline__ void load8(const __nv_bfloat16* source, float (&values)[8]) {
  const uint4 raw = __ldg(reinterpret_cast<const uint4*>(source));
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

// One warp: group maxima, maximum and sum of exponentials of 1024 consecutive logits.
template <typename Logit>
__device__ __forceinline__ void reduce_chunk(const TopKKernelParams& params, int row, int chunk) {
  constexpr int kVectors = kTopKChunk / 256;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const Logit* source = static_cast<const Logit*>(params.op.logits) + row * params.op.row_stride;
  float values[kVectors][8];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int first = chunk * kTopKChunk + j * 256 + lane * 8;
    if (first < params.op.vocab_size) {
      load8(source + first, values[j]);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) values[j][e] = -INFINITY;
    }
  }
  float* maxima = params.maxima + static_cast<int64_t>(row) * params.num_groups + chunk * 16;
  float maximum = -INFINITY;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    float group = -INFINITY;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      values[j][e] = clean_logit(values[j][e]);
      group = fmaxf(group, values[j][e]);
    }
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
      sum = __fadd_rn(sum, exp2_approx(__fmul_rn(__fsub_rn(values[j][e], base), kLog2E)));
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

// All threads; every thread returns the same value. Chunks are added by fixed threads in order.
__device__ __forceinline__ float merge_sums(const TopKKernelParams& params, int row,
                                            float* scratch) {
  const float2* sums = params.sums + static_cast<int64_t>(row) * params.num_chunks;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kWarps = kTopKThreads / 32;
  float2 own = {-INFINITY, 0};
  if (static_cast<int>(threadIdx.x) < params.num_chunks) own = __ldcg(sums + threadIdx.x);
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
  return __fadd_rn(base, logf(sum));
}

// Fills groups[] with the groups that can hold one of the k largest; returns the threshold that
// (value, group) of every such element reaches.
__device__ __forceinline__ uint64_t select_groups(const TopKKernelParams& params, int row,
                                                  BlockTopK& shared, int* groups) {
  constexpr int kPerThread = (1 << 18) / kTopKGroup / kTopKThreads;
  const float* maxima = params.maxima + static_cast<int64_t>(row) * params.num_groups;
  uint64_t own[kPerThread];
  uint64_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int group = static_cast<int>(threadIdx.x) + i * kTopKThreads;
    own[i] = group < params.num_groups
                 ? ranked_key(__ldcg(maxima + group), static_cast<uint32_t>(group))
                 : 0;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) largest = own[i] > largest ? own[i] : largest;
  const uint64_t threshold = kth_thread_maximum(shared, largest, params.op.k);
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (own[i] != 0 && own[i] >= threshold) {
      groups[atomicAdd(&shared.count, 1)] = static_cast<int>(ranked_key_index(own[i]));
    }
  }
  __syncthreads();
  return threshold;
}

__device__ __forceinline__ float load_logit(const float* source, int at) {
  return source[at];
}
__device__ __forceinline__ float load_logit(const __nv_bfloat16* source, int at) {
  return __bfloat162float(source[at]);
}

// Appends the elements of groups[first .. last) that reach the threshold to the list; the count
// may exceed the list's capacity, entries beyond it are dropped.
template <typename Logit>
__device__ __forceinline__ void collect(const TopKKernelParams& params, const Logit* source,
                                        uint64_t threshold, const int* groups, int first, int last,
                                        BlockTopK& shared) {
  constexpr int kUnroll = 8;
  const int total = (last - first) * kTopKGroup;
  for (int begin = 0; begin < total; begin += kUnroll * kTopKThreads) {
    float values[kUnroll];
    int where[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int item = begin + u * kTopKThreads + static_cast<int>(threadIdx.x);
      where[u] = params.op.vocab_size;
      if (item < total) {
        where[u] = groups[first + item / kTopKGroup] * kTopKGroup + item % kTopKGroup;
      }
      values[u] = where[u] < params.op.vocab_size ? load_logit(source, where[u]) : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (where[u] >= params.op.vocab_size) continue;
      const float value = clean_logit(values[u]);
      const auto group = static_cast<uint32_t>(where[u] / kTopKGroup);
      if (ranked_key(value, group) < threshold) continue;
      const int at = atomicAdd(&shared.count, 1);
      if (at < kTopKListCapacity) {
        shared.list[at] = ranked_key(value, static_cast<uint32_t>(where[u]));
      }
    }
  }
}

// Writes the k largest of a list of at most kTopKThreads keys in order.
__device__ __forceinline__ void write_top_k(BlockTopK& shared, int k, int id_offset, float shift,
                                            int32_t* ids, float* values) {
  const int n = shared.count;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < n) {
    const uint64_t key = shared.list[thread];
    const int rank = count_greater(shared.list, n, key);
    if (rank < k) {
      ids[rank] = static_cast<int32_t>(ranked_key_index(key)) + id_offset;
      values[rank] = __fsub_rn(ranked_key_value(key), shift);
    }
  } else if (thread < k) {
    ids[thread] = -1;
    values[thread] = -INFINITY;
  }
}

template <typename Logit>
__device__ __forceinline__ void finish_row(const TopKKernelParams& params, int row,
                                           BlockTopK& shared, int* groups, float* scratch) {
  const int k = params.op.k;
  const Logit* source = static_cast<const Logit*>(params.op.logits) + row * params.op.row_stride;
  const float log_sum_exp = merge_sums(params, row, scratch);
  const uint64_t threshold = select_groups(params, row, shared, groups);
  const int num_groups = shared.count;
  __syncthreads();
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  collect(params, source, threshold, groups, 0, num_groups, shared);
  __syncthreads();
  if (shared.count > kTopKListCapacity) {
    constexpr int kStep = (kTopKListCapacity - kTopKThreads) / kTopKGroup;
    __syncthreads();
    if (threadIdx.x == 0) shared.count = 0;
    for (int first = 0; first < num_groups; first += kStep) {
      __syncthreads();
      collect(params, source, threshold, groups, first, min(first + kStep, num_groups), shared);
      shrink_list(shared, k);
    }
  }
  shrink_list(shared, k);
  write_top_k(shared, k, params.op.vocab_offset, params.op.keep_logits ? 0.0f : log_sum_exp,
              params.op.ids + static_cast<int64_t>(row) * k,
              params.op.log_probs + static_cast<int64_t>(row) * k);
  if (threadIdx.x == 0 && params.op.log_sum_exp != nullptr) {
    params.op.log_sum_exp[row] = log_sum_exp;
  }
}

// grid: (blocks per row, rows)
template <typename Logit>
__global__ __launch_bounds__(kTopKThreads, 4) void top_k_log_probs_kernel(TopKKernelParams params) {
  __shared__ __align__(16) BlockTopK shared;
  __shared__ int groups[kMaxCandidateGroups];
  __shared__ float scratch[2 * kTopKThreads / 32];
  __shared__ bool last;
  grid_dependency_wait();
  grid_dependency_launch();
  const int row = static_cast<int>(blockIdx.y);
  const int chunk =
      static_cast<int>(blockIdx.x) * kTopKChunksPerBlock + static_cast<int>(threadIdx.x) / 32;
  if (chunk < params.num_chunks) reduce_chunk<Logit>(params, row, chunk);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(params.arrivals + row, 1) == static_cast<int>(gridDim.x) - 1;
    if (last) params.arrivals[row] = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  finish_row<Logit>(params, row, shared, groups, scratch);
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
  const float log_sum_exp = __fadd_rn(base, logf(sum));
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
  write_top_k(shared, params.k, 0, log_sum_exp,
              params.out_ids + static_cast<int64_t>(row) * params.k,
              params.out_log_probs + static_cast<int64_t>(row) * params.k);
}

}  // namespace coppice::kernels
