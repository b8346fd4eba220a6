// Projections over packed weights.
#pragma once

#include "backend/cpu/packed_matrix.h"
#include "backend/cpu/workspace.h"

namespace coppice::cpu {

// Rows as a layout wants them (simd/kernels.h): quantised, or the caller's own floats.
struct PreparedRows {
  const std::uint8_t* data = nullptr;
  std::int64_t stride = 0;  // bytes
};

// x [count, cols] f32 at x + i * x_stride (floats). May use all of `workspace`.
PreparedRows prepare_rows(const simd::Kernels& kernels, const simd::PackedMatrix& weight,
                          const float* x, std::int64_t x_stride, std::int64_t count,
                          std::int64_t cols, Workspace& workspace, ThreadPool& pool);

void fast_linear(const simd::Kernels& kernels, const LinearArgs& args, const OwnedMatrix& weight,
                 Workspace& workspace, ThreadPool& pool);
void fast_head_linear(const simd::Kernels& kernels, const HeadLinearArgs& args,
                      const OwnedMatrix& weight, Workspace& workspace, ThreadPool& pool);

}  // namespace coppice::cpu
