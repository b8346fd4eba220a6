#include "kernels/measure/measure.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "base/random_values.h"
#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/launch.h"

namespace coppice::kernels {
namespace {

constexpr int kFillThreads = 256;

__device__ inline size_t first_index() {
  return blockIdx.x * size_t{blockDim.x} + threadIdx.x;
}

unsigned fill_blocks(size_t count) {
  return static_cast<unsigned>(
      std::clamp<size_t>((count + kFillThreads - 1) / kFillThreads, 1, 4096));
}

template <class T>
__global__ void fill_uniform_kernel(T* to, size_t count, uint64_t seed, float amplitude) {
  for (size_t i = first_index(); i < count; i += size_t{gridDim.x} * blockDim.x)
    to[i] = T(random_uniform(seed, i, amplitude));
}

template <class T>
__global__ void fill_bell_kernel(T* to, size_t count, uint64_t seed, float deviation) {
  for (size_t i = first_index(); i < count; i += size_t{gridDim.x} * blockDim.x)
    to[i] = T(random_bell(seed, i, deviation));
}

__global__ void fill_nibbles_kernel(uint32_t* to, size_t count, uint64_t seed, size_t first) {
  for (size_t i = first_index(); i < count; i += size_t{gridDim.x} * blockDim.x)
    to[i] = random_nibbles(seed, first + i);
}

__global__ void fill_scales_kernel(__nv_bfloat16* to, size_t count, uint64_t seed, size_t first,
                                   float typical) {
  for (size_t i = first_index(); i < count; i += size_t{gridDim.x} * blockDim.x)
    to[i] = __float2bfloat16_rn(random_scale(seed, first + i, typical));
}

// A ring of bulk copies per block; without a copy engine, plain 16-byte loads. Launched without
// programmatic dependence: one launch after the other, each from a standing start.
constexpr int kReadStages = 6;
constexpr size_t kReadShared = kReadStages * kReadChunk + kReadStages * sizeof(uint64_t);

__global__ void __launch_bounds__(128)
    read_kernel(const uint8_t* from, int64_t chunks, uint32_t* never) {
  const int64_t first = chunks * blockIdx.x / gridDim.x;
  const int64_t count = chunks * (blockIdx.x + 1) / gridDim.x - first;
  uint32_t sum = 0;
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t ring[];
  auto* full = reinterpret_cast<uint64_t*>(ring + kReadStages * kReadChunk);
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kReadStages; ++i) mbarrier_init(&full[i], 1);
  mbarrier_init_fence();
  const uint64_t policy = evict_first_policy();
  const auto start = [&](int64_t i) {
    const int64_t stage = i % kReadStages;
    mbarrier_arrive_expect(&full[stage], kReadChunk);
    bulk_copy_to_shared(ring + stage * kReadChunk, from + (first + i) * kReadChunk, kReadChunk,
                        &full[stage], policy);
  };
  for (int64_t i = 0; i < count && i < kReadStages; ++i) start(i);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t stage = i % kReadStages;
    mbarrier_wait(&full[stage], (i / kReadStages) & 1);
    sum ^= *reinterpret_cast<volatile uint32_t*>(ring + stage * kReadChunk);
    if (i + kReadStages < count) start(i + kReadStages);
  }
#else
  const auto* words = reinterpret_cast<const uint4*>(from + first * kReadChunk);
  const int64_t num_words = count * int64_t{kReadChunk / sizeof(uint4)};
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < num_words; i += blockDim.x) {
    const uint4 word = __ldcs(words + i);
    sum ^= word.x ^ word.y ^ word.z ^ word.w;
  }
#endif
  if (sum == 0x12345678u) *never = sum;
}

__global__ void empty_kernel() {
  grid_dependency_launch();
  grid_dependency_wait();
}

int num_multiprocessors() {
  static const int count = [] {
    int device = 0, value = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device);
    return value;
  }();
  return count;
}

}  // namespace

cudaError_t fill_uniform(void* to, bool is_bf16, size_t count, uint64_t seed, float amplitude,
                         cudaStream_t stream) {
  const unsigned blocks = fill_blocks(count);
  if (is_bf16)
    fill_uniform_kernel<<<blocks, kFillThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(to), count,
                                                             seed, amplitude);
  else
    fill_uniform_kernel<<<blocks, kFillThreads, 0, stream>>>(static_cast<float*>(to), count, seed,
                                                             amplitude);
  return cudaGetLastError();
}

cudaError_t fill_bell(void* to, bool is_bf16, size_t count, uint64_t seed, float deviation,
                      cudaStream_t stream) {
  const unsigned blocks = fill_blocks(count);
  if (is_bf16)
    fill_bell_kernel<<<blocks, kFillThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(to), count,
                                                          seed, deviation);
  else
    fill_bell_kernel<<<blocks, kFillThreads, 0, stream>>>(static_cast<float*>(to), count, seed,
                                                          deviation);
  return cudaGetLastError();
}

cudaError_t fill_nibbles(uint32_t* to, size_t count, uint64_t seed, size_t first,
                         cudaStream_t stream) {
  fill_nibbles_kernel<<<fill_blocks(count), kFillThreads, 0, stream>>>(to, count, seed, first);
  return cudaGetLastError();
}

cudaError_t fill_scales(void* to, size_t count, uint64_t seed, size_t first, float typical,
                        cudaStream_t stream) {
  fill_scales_kernel<<<fill_blocks(count), kFillThreads, 0, stream>>>(
      static_cast<__nv_bfloat16*>(to), count, seed, first, typical);
  return cudaGetLastError();
}

cudaError_t read_stream(const void* from, size_t num_bytes, uint32_t* never, cudaStream_t stream) {
  const auto chunks = static_cast<int64_t>(num_bytes / kReadChunk);
  if (chunks == 0) return cudaErrorInvalidValue;
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  const bool ring = major >= 9;  // as in read_kernel; plain loads want several blocks
  const int64_t wanted = int64_t{num_multiprocessors()} * (ring ? 1 : 8);
  const size_t shared_bytes = ring ? kReadShared : 0;
  const cudaError_t status = cudaFuncSetAttribute(
      read_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (status != cudaSuccess) return status;
  read_kernel<<<static_cast<unsigned>(std::min(chunks, wanted)), 128, shared_bytes, stream>>>(
      static_cast<const uint8_t*>(from), chunks, never);
  return cudaGetLastError();
}

cudaError_t empty_node(cudaStream_t stream) {
  return launch_dependent(empty_kernel, dim3(1), 32, 0, stream);
}

}  // namespace coppice::kernels
