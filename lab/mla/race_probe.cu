// Which correct ways of ordering accesses compute-sanitizer's racecheck takes for races:
//   compute-sanitizer --tool racecheck race_probe 0..4
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/common/mbarrier.cuh"
#include "kernels/common/sync.cuh"

using namespace coppice::kernels;

namespace {

__device__ void arrive(int barrier) {
  asm volatile("bar.arrive %0, 256;" ::"r"(barrier) : "memory");
}

// Half of the block waits for itself.
__global__ void half_waits(int* out) {
  __shared__ int x[128];
  if (threadIdx.x >= 128) return;
  x[threadIdx.x] = static_cast<int>(threadIdx.x);
  named_barrier_sync(1, 128);
  out[threadIdx.x] = x[127 - threadIdx.x];
}

// One half arrives, the other waits.
__global__ void half_arrives(int* out) {
  __shared__ int x[128];
  if (threadIdx.x < 128) {
    x[threadIdx.x] = static_cast<int>(threadIdx.x);
    arrive(1);
  } else {
    named_barrier_sync(1, 256);
    out[threadIdx.x - 128] = x[threadIdx.x - 128];
  }
}

// Both halves take turns, as the two warpgroups of the attention kernel.
__global__ void halves_alternate(int* out) {
  __shared__ int x[2][128];
  const int half = threadIdx.x / 128, t = threadIdx.x % 128;
  int sum = 0;
  for (int i = half; i < 8; i += 2) {
    if (i > 0) {
      named_barrier_sync(2 - half, 256);
      sum += x[1 - half][127 - t];
    }
    x[half][t] = i + sum;  // the word read has arrived
    if (i < 7) arrive(1 + half);
  }
  out[threadIdx.x] = sum;
}

// One half arrives at an mbarrier, the other waits: all threads arrive, or one for its warp.
template <bool kAll>
__global__ void half_arrives_at_mbarrier(int* out) {
  __shared__ int x[128];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) mbarrier_init(&barrier, kAll ? 128 : 4);
  __syncthreads();
  if (threadIdx.x < 128) {
    x[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncwarp();
    if (kAll || threadIdx.x % 32 == 0) mbarrier_arrive(&barrier);
  } else {
    mbarrier_wait(&barrier, 0);
    out[threadIdx.x - 128] = x[threadIdx.x - 128];
  }
}

}  // namespace

int main(int argc, char** argv) {
  int* out;
  if (cudaMalloc(&out, 1024) != cudaSuccess) return 1;
  const int which = argc > 1 ? atoi(argv[1]) : 0;
  if (which == 0) half_waits<<<1, 256>>>(out);
  if (which == 1) half_arrives<<<1, 256>>>(out);
  if (which == 2) halves_alternate<<<1, 256>>>(out);
  if (which == 3) half_arrives_at_mbarrier<true><<<1, 256>>>(out);
  if (which == 4) half_arrives_at_mbarrier<false><<<1, 256>>>(out);
  printf("%d: %s\n", which, cudaGetErrorString(cudaDeviceSynchronize()));
}
