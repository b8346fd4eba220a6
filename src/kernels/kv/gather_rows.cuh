#pragma once

#include "kernels/kv/gather_rows.h"
#include "kernels/kv/gather_rows_config.h"
#include "kernels/sample/launch.cuh"

namespace coppice::kernels {

inline constexpr int kGatherThreads = 256;

// grid: (parts of a row, count)
template <typename Word>
__global__ __launch_bounds__(kGatherThreads) void gather_rows_kernel(GatherRowsParams params) {
  grid_dependency_wait();
  grid_dependency_launch();
  const int32_t row = params.rows[blockIdx.y];
  if (row < 0) return;
  const auto* src = reinterpret_cast<const Word*>(static_cast<const char*>(params.src) +
                                                  row * params.src_stride_bytes);
  auto* out = reinterpret_cast<Word*>(static_cast<char*>(params.out) +
                                      blockIdx.y * params.out_stride_bytes);
  const int words = params.row_bytes / static_cast<int>(sizeof(Word));
  const int step = static_cast<int>(gridDim.x) * kGatherThreads;
#pragma unroll 4
  for (int i = static_cast<int>(blockIdx.x) * kGatherThreads + static_cast<int>(threadIdx.x);
       i < words; i += step) {
    out[i] = src[i];
  }
}

}  // namespace coppice::kernels
