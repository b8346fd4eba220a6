// out[i] = src[rows[i]]; a negative row leaves out[i] as it is.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

struct GatherRowsParams {
  const void* src = nullptr;      // rows of row_bytes, src_stride_bytes apart
  void* out = nullptr;            // [count] rows of row_bytes, out_stride_bytes apart
  const int32_t* rows = nullptr;  // [count]
  int64_t src_stride_bytes = 0;
  int64_t out_stride_bytes = 0;
  int row_bytes = 0;  // a multiple of 2
  int count = 0;
};

// Enqueues on `stream`; capturable. Returns cudaErrorInvalidValue for odd row_bytes.
cudaError_t gather_rows(const GatherRowsParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
