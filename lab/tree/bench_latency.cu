// Cycles of the warp operations that the tree builder's inner loop is a chain of.
#include <cstdio>

#include "bench_edges.h"
#include "device.h"

namespace lab {
namespace {

constexpr int kSteps = 256;

template <typename Step>
__device__ void measure(long long* out, int* sink, int value, Step&& step) {
  for (int warm = 0; warm < 2; ++warm) {
    const long long begin = clock64();
#pragma unroll 16
    for (int i = 0; i < kSteps; ++i) value = step(value);
    const long long end = clock64();
    if (threadIdx.x == 0) *out = end - begin;
  }
  sink[threadIdx.x] = value;
}

__global__ void latency_kernel(long long* out, int* sink) {
  __shared__ int memory[64];
  const int lane = static_cast<int>(threadIdx.x);
  memory[lane] = lane;
  memory[lane + 32] = lane;
  __syncwarp();
  measure(out + 0, sink, lane, [&](int v) { return __reduce_max_sync(~0u, v) ^ lane; });
  measure(out + 1, sink, lane, [&](int v) {
    return static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(v))) ^ lane;
  });
  measure(out + 2, sink, lane, [&](int v) { return __shfl_sync(~0u, v, v & 31) ^ 1; });
  measure(out + 3, sink, lane, [&](int v) { return __shfl_xor_sync(~0u, v, 1) + 1; });
  measure(out + 4, sink, lane,
          [&](int v) { return static_cast<int>(__ballot_sync(~0u, v > 3)) + lane; });
  measure(out + 5, sink, lane, [&](int v) { return __ffs(v) + lane; });
  measure(out + 6, sink, lane, [&](int v) { return memory[v & 31]; });
  measure(out + 7, sink, lane, [&](int v) { return max(v ^ lane, 3); });
  measure(out + 8, sink, lane, [&](int v) {
    const int a = __reduce_max_sync(~0u, v);
    const int b = __reduce_max_sync(~0u, v + 1);
    return (a + b) ^ lane;
  });
  measure(out + 9, sink, lane, [&](int v) {
    memory[32 + lane] = v;
    __syncwarp();
    const int next = memory[32 + (lane ^ 1)];
    __syncwarp();
    return next;
  });
}

}  // namespace

void bench_latency() {
  DeviceArray<long long> out(10, 0);
  DeviceArray<int> sink(32);
  latency_kernel<<<1, 32>>>(out.get(), sink.get());
  const auto cycles = out.host();
  const char* names[10] = {"redux.max.s32 + xor", "redux.max.u32 + xor", "shfl.idx + xor",
                           "shfl.xor + add",      "vote.ballot + add",   "ffs + add",
                           "shared load + and",   "max + xor",           "2 redux.max + add, xor",
                           "shared exchange"};
  for (int i = 0; i < 10; ++i) {
    std::printf("%-24s %6.1f cycles\n", names[i], static_cast<double>(cycles[i]) / kSteps);
  }
}

}  // namespace lab
