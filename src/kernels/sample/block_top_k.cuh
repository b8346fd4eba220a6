// The k largest of a list of distinct 64-bit keys, by one block, without sorting the list.
//
// Lemma used throughout: split distinct keys into parts; the k-th largest of the parts' maxima is
// a lower bound on the k-th largest key, so keys below it can be dropped.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

inline constexpr int kTopKThreads = 256;
inline constexpr int kTopKListCapacity = 2048;
inline constexpr int kTopKMax = 64;

struct BlockTopK {
  uint64_t list[kTopKListCapacity];
  uint64_t maxima[kTopKThreads];
  uint64_t threshold;
  int count;
};

inline constexpr int kTopKUnroll = 16;

// How many of keys[0 .. n) exceed `key`. n is a multiple of kTopKUnroll: pad with zeros.
__device__ __forceinline__ int count_greater(const uint64_t* keys, int n, uint64_t key) {
  int greater = 0;
  for (int i = 0; i < n; i += kTopKUnroll) {
    ulonglong2 pairs[kTopKUnroll / 2];
#pragma unroll
    for (int j = 0; j < kTopKUnroll / 2; ++j) {
      pairs[j] = *reinterpret_cast<const ulonglong2*>(keys + i + 2 * j);
    }
#pragma unroll
    for (int j = 0; j < kTopKUnroll / 2; ++j) {
      greater += pairs[j].x > key;
      greater += pairs[j].y > key;
    }
  }
  return greater;
}

// The k-th largest of the threads' values (0 when fewer than k are non-zero). All threads of the
// block call; non-zero values are distinct.
__device__ __forceinline__ uint64_t kth_thread_maximum(BlockTopK& shared, uint64_t mine, int k) {
  __syncthreads();
  shared.maxima[threadIdx.x] = mine;
  if (threadIdx.x == 0) shared.threshold = 0;
  __syncthreads();
  if (mine != 0 && count_greater(shared.maxima, kTopKThreads, mine) == k - 1) {
    shared.threshold = mine;
  }
  __syncthreads();
  return shared.threshold;
}

// Drops keys that cannot be among the k largest until at most one per thread is left.
__device__ __forceinline__ void shrink_list(BlockTopK& shared, int k) {
  constexpr int kPerThread = kTopKListCapacity / kTopKThreads;
  __syncthreads();
  int n = shared.count;
  while (n > kTopKThreads) {
    uint64_t own[kPerThread];
    uint64_t largest = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kTopKThreads;
      own[i] = at < n ? shared.list[at] : 0;
      largest = own[i] > largest ? own[i] : largest;
    }
    const uint64_t threshold = kth_thread_maximum(shared, largest, k);
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (own[i] != 0 && own[i] >= threshold) shared.list[atomicAdd(&shared.count, 1)] = own[i];
    }
    __syncthreads();
    n = shared.count;
  }
}

}  // namespace coppice::kernels
