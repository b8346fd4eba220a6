// Shared by the lab programs: error checks, random data, graph timing, the read ceiling.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/common/bulk_copy.cuh"

#define CHECK_CUDA(call)                                                                     \
  do {                                                                                       \
    const cudaError_t error_ = (call);                                                       \
    if (error_ != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (0)

namespace lab {

template <typename T>
T* device_array(size_t count) {
  void* pointer = nullptr;
  CHECK_CUDA(cudaMalloc(&pointer, std::max<size_t>(count, 1) * sizeof(T)));
  return static_cast<T*>(pointer);
}

template <typename T>
T* device_copy(const std::vector<T>& host) {
  T* pointer = device_array<T>(host.size());
  CHECK_CUDA(cudaMemcpy(pointer, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return pointer;
}

__host__ __device__ inline uint32_t hash(uint64_t key) {
  key ^= key >> 33;
  key *= 0xff51afd7ed558ccdull;
  key ^= key >> 33;
  key *= 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(key >> 32);
}

// Uniform in [-1, 1) by hash.
__host__ __device__ inline float uniform(uint64_t key) {
  return static_cast<float>(hash(key)) * (2.0f / 4294967296.0f) - 1.0f;
}

// Roughly normal with the given deviation.
__global__ void fill_normal(__nv_bfloat16* to, size_t count, uint64_t seed, float deviation) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const float sum = uniform(seed + 3 * i) + uniform(seed + 3 * i + 1) + uniform(seed + 3 * i + 2);
    to[i] = __float2bfloat16(sum * deviation);
  }
}

__global__ void fill_scales(__nv_bfloat16* to, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    to[i] = __float2bfloat16(0.0025f + 0.0015f * uniform(seed + i));
  }
}

__global__ void fill_words(uint32_t* to, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    to[i] = hash(seed + i);
  }
}

__global__ void count_different_words(const uint32_t* a, const uint32_t* b, size_t count,
                                      unsigned long long* different) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    if (a[i] != b[i]) atomicAdd(different, 1ull);
  }
}

inline unsigned long long different_words(const void* a, const void* b, size_t count) {
  static auto* counter = device_array<unsigned long long>(1);
  CHECK_CUDA(cudaMemset(counter, 0, sizeof(*counter)));
  count_different_words<<<264, 256>>>(static_cast<const uint32_t*>(a),
                                      static_cast<const uint32_t*>(b), count, counter);
  unsigned long long result = 0;
  CHECK_CUDA(cudaMemcpy(&result, counter, sizeof(result), cudaMemcpyDeviceToHost));
  return result;
}

// Median microseconds of one replay of what `enqueue(stream)` enqueues, divided by `calls`.
template <typename Enqueue>
float time_graph(Enqueue enqueue, int calls, int replays) {
  static cudaStream_t stream = nullptr;
  if (!stream) CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaDeviceSynchronize());
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  enqueue(stream);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < replays + 2; ++i) {
    CHECK_CUDA(cudaEventRecord(begin, stream));
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
    CHECK_CUDA(cudaEventRecord(end, stream));
    CHECK_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms * 1000.0f / calls);
  }
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  CHECK_CUDA(cudaGraphExecDestroy(exec));
  CHECK_CUDA(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Reads `chunks` chunks of 32 KB by bulk copies and does nothing with them.
__global__ void read_kernel(const uint8_t* from, int chunks, uint32_t* never) {
  using namespace coppice::kernels;
  constexpr int kStages = 6, kChunk = 32768;
  extern __shared__ __align__(128) uint8_t data[];
  auto* full = reinterpret_cast<uint64_t*>(data + kStages * kChunk);
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kStages; ++i) mbarrier_init(&full[i], 1);
  mbarrier_init_fence();
  const uint64_t policy = evict_first_policy();
  const int first = static_cast<int>(int64_t{chunks} * blockIdx.x / gridDim.x);
  const int count = static_cast<int>(int64_t{chunks} * (blockIdx.x + 1) / gridDim.x) - first;
  uint32_t sum = 0;
  for (int i = 0; i < count + kStages; ++i) {
    const int stage = i % kStages;
    if (i >= kStages) {
      mbarrier_wait(&full[stage], (i / kStages - 1) & 1);
      sum ^= *reinterpret_cast<volatile uint32_t*>(data + stage * kChunk);
    }
    if (i < count) {
      mbarrier_arrive_expect(&full[stage], kChunk);
      bulk_copy_to_shared(data + stage * kChunk, from + int64_t{first + i} * kChunk, kChunk,
                          &full[stage], policy);
    }
    if (i >= count && i - kStages >= count - 1) break;
  }
  if (sum == 0x12345678u) *never = sum;
}

// TB/s of a read-only stream over `bytes`.
inline double read_ceiling(const void* from, size_t bytes) {
  static auto* never = device_array<uint32_t>(1);
  constexpr int kShared = 6 * 32768 + 64;
  CHECK_CUDA(
      cudaFuncSetAttribute(read_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const int chunks = static_cast<int>(bytes / 32768);
  const float us = time_graph(
      [&](cudaStream_t stream) {
        read_kernel<<<132, 32, kShared, stream>>>(static_cast<const uint8_t*>(from), chunks, never);
      },
      1, 9);
  CHECK_CUDA(cudaGetLastError());
  return chunks * 32768.0 / us * 1e-6;
}

}  // namespace lab
