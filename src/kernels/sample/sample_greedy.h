// One token per row: the largest logit, lowest id on ties, and whether the row was finite.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace coppice::kernels {

struct SampleGreedyParams {
  const float* logits = nullptr;        // [num_rows, vocab_size], rows 16-byte aligned
  int64_t row_stride = 0;               // elements between rows, a multiple of 4
  const int32_t* seq_of_row = nullptr;  // [num_rows]; -1: choice -1, finite 1, logits not read
  int num_rows = 0;                     // 0 to max_rows
  int vocab_size = 0;                   // a multiple of 4
  int max_rows = 0;                     // the workspace was sized for
  int32_t* choices = nullptr;           // [num_rows] out; -1 if the row is not finite
  int32_t* finite = nullptr;            // [num_rows] out: 0 if the row holds NaN or infinity
  void* workspace = nullptr;            // sample_greedy_workspace_bytes, 16-byte aligned
};

// The workspace must be zero before the first call; every call leaves it zero. One workspace serves
// one stream.
size_t sample_greedy_workspace_bytes(int max_rows);

// Enqueues on `stream`; capturable. Returns cudaErrorInvalidValue outside the limits above.
cudaError_t sample_greedy(const SampleGreedyParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
