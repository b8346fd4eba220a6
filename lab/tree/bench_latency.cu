// Cycles of the warp operations that the tree builder's inner loop is a chain of.
#include <cstdio>

#include "bench_edges.h"
#include "device.h"
#include "kernels/tree/build_tree.cuh"

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

__device__ long long nanoseconds() {
  long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// out: cycles of `nodes` rounds of the build loop, then cycles and ns of a long loop.
template <int kSlots>
__global__ void grow_kernel(long long* out, int nodes, unsigned seed) {
  using namespace coppice::kernels;
  constexpr int kDepth = 15, kRanks = 64;
  __shared__ Step table[kDepth * kRanks + 1];
  __shared__ Record records[513];
  float lp[2] = {0, 0};
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kRanks; i += 32) {
    for (int j = 0; j < 2; ++j) {
      unsigned h = seed + static_cast<unsigned>(i / kRanks) * 77u;
      h ^= h << 13, h ^= h >> 17, h ^= h << 5;
      const float scale = 0.3f + static_cast<float>(h & 1023) * 0.0007f;
      lp[j] = -scale * static_cast<float>(1 + i % kRanks + j);
    }
    unsigned h = seed + static_cast<unsigned>(i / kRanks + 1) * 77u;
    h ^= h << 13, h ^= h >> 17, h ^= h << 5;
    const float below = -(0.3f + static_cast<float>(h & 1023) * 0.0007f);
    table[i] = {lp[0], i % kRanks + 1 < kRanks ? lp[1] : -INFINITY,
                i / kRanks + 1 < kDepth ? below : -INFINITY,
                static_cast<uint32_t>(min((i / kRanks + 1) * kRanks, kDepth * kRanks))};
  }
  __syncwarp();
  for (int warm = 0; warm < 3; ++warm) {
    const long long begin = clock64();
    const int count = grow_tree<kSlots>(table, kRanks, nodes, -INFINITY, records);
    const long long end = clock64();
    if (threadIdx.x == 0) out[0] = end - begin;
    if (threadIdx.x == 0) out[3] = count;
  }
  const long long cycles = clock64();
  const long long begin = nanoseconds();
  while (clock64() - cycles < 2000000) {
  }
  if (threadIdx.x == 0) {
    out[1] = clock64() - cycles;
    out[2] = nanoseconds() - begin;
  }
}

template <int kSlots>
void bench_grow(int nodes) {
  DeviceArray<long long> out(4, 0);
  grow_kernel<kSlots><<<1, 32>>>(out.get(), nodes, 12345u);
  const auto h = out.host();
  std::printf("build loop, %3d nodes (%lld taken), %d slots: %.1f cycles a node; clock %.2f GHz\n",
              nodes, h[3], kSlots, static_cast<double>(h[0]) / nodes,
              static_cast<double>(h[1]) / static_cast<double>(h[2]));
}

}  // namespace

void bench_latency() {
  bench_grow<1>(16);
  bench_grow<1>(32);
  bench_grow<2>(64);
  bench_grow<4>(128);
  bench_grow<8>(256);
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
