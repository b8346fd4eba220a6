// top_k_log_probs for few rows: a cluster of eight blocks reads a row and leaves its parts in the
// shared memory of the first one, which finishes the row. Bits equal those of the other kernel.
#pragma once

#include "kernels/common/cluster.cuh"
#include "kernels/sample/top_k_log_probs.cuh"

namespace coppice::kernels {

inline constexpr int kTopKCluster = 8;
inline constexpr int kClusterWarps = kTopKCluster * kTopKThreads / 32;
inline constexpr int kChunksPerWarp = (1 << 18) / kTopKChunk / kClusterWarps;

// grid: (kTopKCluster, rows)
template <typename Logits>
__global__ __cluster_dims__(kTopKCluster) __launch_bounds__(
    kTopKThreads, 1) void top_k_cluster_kernel(const __grid_constant__ TopKKernelParams params) {
  __shared__ __align__(16) BlockTopK shared;
  __shared__ int groups[kMaxCandidateGroups];
  __shared__ float2 shared_sum;
  __shared__ float2 sums[(1 << 18) / kTopKChunk];
  __shared__ float maxima[(1 << 18) / kTopKGroup];
  cluster_arrive();
  grid_dependency_wait();
  grid_dependency_launch();
  const int row = static_cast<int>(blockIdx.y);
  const int warp =
      static_cast<int>(blockIdx.x) * (kTopKThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  Logits logits[kChunksPerWarp][kVectorsPerChunk];
#pragma unroll
  for (int i = 0; i < kChunksPerWarp; ++i) {
    load_chunk<Logits>(params, row, i * kClusterWarps + warp, logits[i]);
  }
  cluster_wait();  // the first block runs
  const auto first_block = [](const void* address) {
    return cluster_address(static_cast<uint32_t>(__cvta_generic_to_shared(address)), 0);
  };
  const uint32_t maxima_there = first_block(maxima);
  const uint32_t sums_there = first_block(sums);
#pragma unroll
  for (int i = 0; i < kChunksPerWarp; ++i) {
    const int chunk = i * kClusterWarps + warp;
    if (chunk >= params.num_chunks) break;
    reduce_chunk<Logits>(
        logits[i],
        [&](int group, float value) {
          cluster_store(maxima_there + static_cast<uint32_t>(chunk * 16 + group) * 4,
                        __float_as_uint(value));
        },
        [&](float maximum, float sum) {
          const uint32_t at = sums_there + static_cast<uint32_t>(chunk) * 8;
          cluster_store(at, __float_as_uint(maximum));
          cluster_store(at + 4, __float_as_uint(sum));
        });
  }
  cluster_sync();
  if (blockIdx.x != 0) return;
  TopKKernelParams own = params;  // the row's parts are here
  own.maxima = maxima - static_cast<int64_t>(row) * params.num_groups;
  own.sums = sums - static_cast<int64_t>(row) * params.num_chunks;
  finish_row<Logits, true>(own, row, shared, groups, &shared_sum);
}

}  // namespace coppice::kernels
