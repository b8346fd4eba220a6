// A block owns a few columns of one plane and stages all pairs of them in shared memory between the
// reads and the writes, as many columns at a time as the pairs that move leave room for: no order
// of copies to get wrong.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/kv/move_kv.h"
#include "kernels/kv/move_kv_config.h"

namespace coppice::kernels {

struct MoveKvKernelParams {
  MoveKvParams op;
  int columns;
  int staged;  // uint4s of shared memory; at least num_pairs
};

// Lists the pairs that move; returns their number.
template <int kThreads>
__device__ __forceinline__ int list_pairs(const MoveKvParams& op, int2* pairs, int* shared_count) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  for (int begin = 0; begin < op.num_pairs; begin += kThreads) {
    const int i = begin + thread;
    const bool exists = i < op.num_pairs;
    const int2 pair = {exists ? op.src[i] : -1, exists ? op.dst[i] : -1};
    const bool moves = pair.x >= 0 && pair.y >= 0;
    const unsigned moving = __ballot_sync(0xffffffffu, moves);
    int at = 0;
    if (lane == 0 && moving != 0) at = atomicAdd(shared_count, __popc(moving));
    at = __shfl_sync(0xffffffffu, at, 0) + __popc(moving & ((1u << lane) - 1));
    if (moves) pairs[at] = pair;
  }
  __syncthreads();
  return *shared_count;
}

// grid: (blocks per plane, planes). Dynamic shared memory: uint4 [staged], int2 [num_pairs].
template <int kThreads>
__global__ __launch_bounds__(kThreads) void move_kv_kernel(
    const __grid_constant__ MoveKvKernelParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int shared_count;
  const MoveKvParams& op = params.op;
  auto* staged = reinterpret_cast<uint4*>(memory);
  auto* pairs = reinterpret_cast<int2*>(staged + params.staged);
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared_count = 0;
  __syncthreads();
  grid_dependency_wait();
  grid_dependency_launch();
  const int count = list_pairs<kThreads>(op, pairs, &shared_count);
  if (count == 0) return;
  const int row_columns = op.row_bytes / 16;
  const int first = static_cast<int>(blockIdx.x) * params.columns;
  const int last = min(first + params.columns, row_columns);
  auto* plane = static_cast<uint4*>(op.planes[blockIdx.y]);
  const int at_once =
      count * params.columns <= params.staged ? params.columns : params.staged / count;
  for (int begin = first; begin < last; begin += at_once) {
    const int columns = min(at_once, last - begin);
    const int items = count * columns;
    // Item i is column i % columns of pair i / columns.
    const int pair_step = kThreads / columns;
    const int column_step = kThreads - pair_step * columns;
    const int first_pair = thread / columns;
    const auto for_items = [&](auto&& body) {
      int pair = first_pair;
      int column = thread - first_pair * columns;
#pragma unroll 8
      for (int i = thread; i < items; i += kThreads) {
        body(staged[i], pairs[pair], begin + column);
        pair += pair_step;
        column += column_step;
        if (column >= columns) {
          column -= columns;
          ++pair;
        }
      }
    };
    if (begin != first) __syncthreads();
    for_items([&](uint4& item, const int2& pair, int column) {
      item = plane[static_cast<int64_t>(pair.x) * row_columns + column];
    });
    __syncthreads();
    for_items([&](const uint4& item, const int2& pair, int column) {
      plane[static_cast<int64_t>(pair.y) * row_columns + column] = item;
    });
  }
}

}  // namespace coppice::kernels
