// A block owns a few columns of one plane and stages all pairs of them in shared memory between the
// reads and the writes: no order of copies to get wrong.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/kv/move_kv.h"
#include "kernels/kv/move_kv_config.h"

namespace coppice::kernels {

inline constexpr int kMoveKvThreads = 256;

struct MoveKvKernelParams {
  MoveKvParams op;
  int columns;
};

// grid: (blocks per plane, planes). Dynamic shared memory: uint4 [num_pairs, columns], int2
// [num_pairs].
__global__ __launch_bounds__(kMoveKvThreads) void move_kv_kernel(
    const __grid_constant__ MoveKvKernelParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int shared_count;
  const MoveKvParams& op = params.op;
  auto* staged = reinterpret_cast<uint4*>(memory);
  auto* pairs = reinterpret_cast<int2*>(staged + op.num_pairs * params.columns);
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared_count = 0;
  __syncthreads();
  grid_dependency_wait();
  grid_dependency_launch();
  for (int i = thread; i < op.num_pairs; i += kMoveKvThreads) {
    const int2 pair = {op.src[i], op.dst[i]};
    if (pair.x >= 0 && pair.y >= 0) pairs[atomicAdd(&shared_count, 1)] = pair;
  }
  __syncthreads();
  const int row_columns = op.row_bytes / 16;
  const int first = static_cast<int>(blockIdx.x) * params.columns;
  const int columns = min(params.columns, row_columns - first);
  const int items = shared_count * columns;
  uint4* plane = static_cast<uint4*>(op.planes[blockIdx.y]) + first;
#pragma unroll 4
  for (int i = thread; i < items; i += kMoveKvThreads) {
    staged[i] = plane[static_cast<int64_t>(pairs[i / columns].x) * row_columns + i % columns];
  }
  __syncthreads();
  for (int i = thread; i < items; i += kMoveKvThreads) {
    plane[static_cast<int64_t>(pairs[i / columns].y) * row_columns + i % columns] = staged[i];
  }
}

}  // namespace coppice::kernels
