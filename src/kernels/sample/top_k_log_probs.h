// Per row the k largest logits, as log-probabilities at temperature 1 over the full vocabulary:
//   log_probs[r, i] = logit - log(sum over the vocabulary of exp(logit))
// Equal logits rank by lowest id. NaN counts as -inf, +inf as the largest finite bf16.
//
// A row's bits depend on that row alone: partial sums cover fixed runs of 1024 ids and are added in
// a fixed order, whatever the number of rows.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace coppice::kernels {

struct TopKLogProbsParams {
  const void* logits = nullptr;  // [num_rows, vocab_size] fp32 or bf16, rows 16-byte aligned
  int64_t row_stride = 0;        // elements between rows, a multiple of 8
  bool logits_are_bf16 = false;
  bool keep_logits = false;      // write logits instead of log-probabilities (vocabulary shards)
  int num_rows = 0;              // 0 to max_rows
  int vocab_size = 0;            // of this shard, a multiple of 8, at most 2^18
  int vocab_offset = 0;          // added to every id
  int k = 0;                     // 1 to 64
  int max_rows = 0;              // the workspace was sized for
  int32_t* ids = nullptr;        // [num_rows, k]; -1 where the logit is -inf
  float* log_probs = nullptr;    // [num_rows, k]
  float* log_sum_exp = nullptr;  // [num_rows], or null
  void* workspace = nullptr;     // top_k_log_probs_workspace_bytes, 128-byte aligned
};

// The first 4 * max_rows bytes of the workspace must be zero before the first call; every call
// leaves them zero. The rest needs no initialisation. One workspace serves one stream.
size_t top_k_log_probs_workspace_bytes(int max_rows, int vocab_size);

// Enqueues on `stream`; capturable. Returns cudaErrorInvalidValue outside the limits above.
cudaError_t top_k_log_probs(const TopKLogProbsParams& params, cudaStream_t stream);

// Merges the results of vocabulary shards (made with keep_logits) into those of the whole.
struct MergeTopKParams {
  const int32_t* ids = nullptr;        // [num_shards, num_rows, k]
  const float* logits = nullptr;       // [num_shards, num_rows, k]
  const float* log_sum_exp = nullptr;  // [num_shards, num_rows]
  int num_shards = 0;                  // 1 to 32
  int num_rows = 0;
  int k = 0;
  int32_t* out_ids = nullptr;      // [num_rows, k]
  float* out_log_probs = nullptr;  // [num_rows, k]
};

cudaError_t merge_top_k(const MergeTopKParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
