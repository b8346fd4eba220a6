// Ways to hand shared memory over, each in a kernel of its own, for compute-sanitizer's racecheck:
// what it follows and what it does not (docs/results/2026-11-30-h200-sanitizer.md).
//   make -C lab handovers; compute-sanitizer --tool racecheck lab/build/handovers NAME
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/sync.cuh"

using namespace coppice::kernels;

namespace {

__device__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Written, arrived; the others wait and read, once.
__global__ void arrive(int* out) {
  __shared__ int data[128];
  const int t = threadIdx.x;
  if (t < 128) {
    data[t] = t * 3;
    named_barrier_arrive(1, 256);
  } else {
    named_barrier_sync(1, 256);
    out[t - 128] = data[255 - t];
  }
}

// Two groups of four warps: each writes its row, arrives, waits for the other's and reads it.
__global__ void to_and_fro(int* out) {
  __shared__ int data[2][128];
  const int group = threadIdx.x / 128, t = threadIdx.x % 128;
  int sum = 0;
  for (int i = 0; i < 6; ++i) {
    if (i > 0 || group == 1) {
      named_barrier_sync(2 - group, 256);
      sum += data[1 - group][127 - t];
    }
    data[group][t] = i + t;
    named_barrier_arrive(1 + group, 256);
  }
  if (group == 0) {
    named_barrier_sync(2, 256);
    sum += data[1][127 - t];
  }
  out[threadIdx.x] = sum;
}

// A row handed over by arrival, then an exchange across a barrier that all threads wait on.
__global__ void arrive_and_sync(int* out) {
  __shared__ int data[128], sums[2][256];
  const int group = threadIdx.x / 128, t = threadIdx.x % 128;
  int sum = 0;
  for (int i = 0; i < 6; ++i) {
    if (group == 0) {
      data[t] = i + t;
      named_barrier_arrive(1, 256);
    } else {
      named_barrier_sync(1, 256);
      sum += data[127 - t];
    }
    sums[i & 1][threadIdx.x] = sum;
    named_barrier_sync(3, 256);
    sum += sums[i & 1][255 - threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

// A stage that a bulk copy fills again once a warp has read it.
template <bool kEachLane>
__global__ void stage(const uint8_t* from, int* out) {
  constexpr int kRounds = 8, kBytes = 512;
  __shared__ __align__(128) uint8_t data[kBytes];
  __shared__ uint64_t full, empty;
  const int t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init(&empty, kEachLane ? 32 : 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (t == 32) {
    for (int i = 0; i < kRounds; ++i) {
      mbarrier_wait(&empty, (i & 1) ^ 1);
      mbarrier_arrive_expect(&full, kBytes);
      bulk_copy_to_shared(data, from + i * kBytes, kBytes, &full);
    }
  } else if (t < 32) {
    uint32_t sum = 0;
    for (int i = 0; i < kRounds; ++i) {
      mbarrier_wait(&full, i & 1);
      const uint4 v = reinterpret_cast<const uint4*>(data)[t];
      sum += v.x ^ v.w;
      if (!kEachLane) __syncwarp();
      if (kEachLane || t == 0) mbarrier_arrive_after(&empty, v.x);
    }
    out[t] = static_cast<int>(sum);
  }
}

// Each block of a cluster of four has filled its own memory; reads everybody's.
__device__ void read_all_blocks(const float* data, int* out) {
  const int t = threadIdx.x;
  cluster_sync();
  float sum = 0;
  for (int r = 0; r < 4; ++r) {
    const float4 v = cluster_load(cluster_address(shared_address(&data[(255 - t) * 4]), r));
    sum += v.x + v.y + v.z + v.w;
  }
  out[blockIdx.x * blockDim.x + t] = static_cast<int>(sum);
  cluster_sync();
}

// Blocks of a cluster of four write their own and read each other's memory.
__global__ void __cluster_dims__(4) cluster(int* out) {
  __shared__ __align__(16) float data[1024];
  const int t = threadIdx.x;
  for (int i = 0; i < 4; ++i) data[t * 4 + i] = static_cast<float>(t);
  read_all_blocks(data, out);
}

// The same in a chain whose kernels start before the one in front has finished: two of them share
// an SM.
__global__ void chained(int* out) {
  __shared__ __align__(16) float data[1024];
  const int t = threadIdx.x;
  grid_dependency_launch();
  for (int i = 0; i < 4; ++i) data[t * 4 + i] = static_cast<float>(t);
  grid_dependency_wait();
  read_all_blocks(data, out);
}

// Both blocks of a cluster write to each other's memory; two lanes of each warp tell the blocks.
__global__ void __cluster_dims__(2) send_to_both(int* out) {
  __shared__ uint32_t data[2][128];
  __shared__ uint64_t arrived, used;
  const int t = threadIdx.x, lane = t % 32, rank = blockIdx.x % 2;
  if (t == 0) {
    mbarrier_init(&arrived, 8);
    mbarrier_init(&used, 8);
    mbarrier_init_fence();
  }
  cluster_sync();
  const auto tell = [&](uint64_t* barrier) {
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
    __syncwarp();
    if (lane >= 2) return;
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     cluster_address(shared_address(barrier), lane))
                 : "memory");
  };
  const auto wait = [](uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
  };
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 6; ++i) {
    if (i > 0) wait(&used, (i - 1) & 1);
    for (int r = 0; r < 2; ++r)
      cluster_store(cluster_address(shared_address(&data[rank][t]), r), i + t);
    tell(&arrived);
    wait(&arrived, i & 1);
    sum += data[0][127 - t] + data[1][127 - t];
    if (i < 5) tell(&used);
  }
  out[blockIdx.x * blockDim.x + t] = static_cast<int>(sum);
}

// A real race, as sampling had one: read after a barrier, and written by who is ahead.
__global__ void read_and_next(int* out) {
  __shared__ int found;
  int sum = 0;
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x == 32) found = i;
    __syncthreads();
    sum += found;
  }
  out[threadIdx.x] = sum;
}

__global__ void race(int* out) {
  __shared__ int data[256];
  data[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = data[255 - threadIdx.x];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  int* out = nullptr;
  uint8_t* from = nullptr;
  cudaMalloc(&out, 1 << 22);
  cudaMalloc(&from, 1 << 12);
  cudaMemset(from, 1, 1 << 12);
  if (name == "arrive") arrive<<<1, 256>>>(out);
  if (name == "to_and_fro") to_and_fro<<<1, 256>>>(out);
  if (name == "arrive_and_sync") arrive_and_sync<<<1, 256>>>(out);
  if (name == "stage_lane_0") stage<false><<<1, 64>>>(from, out);
  if (name == "stage_each_lane") stage<true><<<1, 64>>>(from, out);
  if (name == "cluster") cluster<<<800, 256>>>(out);
  for (int i = 0; name == "chained" && i < 20; ++i)
    launch_clusters(chained, dim3(264), 4, 256, 0, nullptr, out);
  if (name == "send_to_both") send_to_both<<<16, 128>>>(out);
  if (name == "read_and_next") read_and_next<<<1, 256>>>(out);
  if (name == "race") race<<<1, 256>>>(out);
  std::printf("%s: %s\n", name.c_str(), cudaGetErrorString(cudaDeviceSynchronize()));
}
