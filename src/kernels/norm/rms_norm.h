// RMS norm of rows, alone or after a residual addition (Zhang and Sennrich, arXiv 1910.07467).
//
// out = x / sqrt(mean(x^2) + eps) * weight in fp32, rounded once. The reduction order follows from
// hidden_size alone, so a row's bits do not depend on the other rows, and the fused form equals an
// addition followed by the norm bit for bit.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

struct RmsNormParams {
  const void* x = nullptr;        // bf16 [num_rows, hidden_size]
  const void* delta = nullptr;    // bf16 [num_rows, hidden_size], or null
  void* residual = nullptr;       // bf16 [num_rows, hidden_size]: x + delta, written if delta is
                                  // set; may be x itself
  const float* weight = nullptr;  // f32 [hidden_size]
  void* out = nullptr;            // bf16 [num_rows, hidden_size]; may be x if delta is null
  int64_t x_row_stride = 0;       // elements; all strides are multiples of 8
  int64_t delta_row_stride = 0;
  int64_t residual_row_stride = 0;
  int64_t out_row_stride = 0;
  int32_t num_rows = 0;
  int32_t hidden_size = 0;  // multiple of 8, at most 65536
  float eps = 0;
};

// A launch error, or cudaErrorInvalidValue for a size it does not cover.
cudaError_t rms_norm(const RmsNormParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
