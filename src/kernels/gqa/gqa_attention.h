// Grouped-query attention over a paged cache, for decoding, tree verification, prefill rows and a
// drafter's non-causal block alike.
//
// A row (token) sees positions 0 .. kv_len-1 through its sequence's block table, then path_len keys
// at explicit slots; a window and a causal limit narrow that by the row's own position. Its result
// is the same bits whatever else is in the batch and however the work is spread over the GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/gqa/gqa_attention_config.h"

namespace coppice::kernels {

struct GqaAttentionParams {
  const void* q = nullptr;        // bf16 [num_rows, num_heads, head_dim]
  int64_t q_row_stride = 0;       // elements; multiple of 8
  const void* k_cache = nullptr;  // bf16 [num_blocks, 64, num_kv_heads * head_dim]
  const void* v_cache = nullptr;  // the same shape
  void* out = nullptr;            // bf16 [num_rows, num_heads, head_dim]

  // Batch metadata in device memory. Rows of one sequence are neighbours.
  const int32_t* seq_of_row = nullptr;    // [num_rows]; -1: inert row, its output is zero
  const int32_t* kv_len = nullptr;        // [num_rows]
  const int32_t* path_len = nullptr;      // [num_rows]
  const int32_t* path = nullptr;          // [num_rows, max_path] slots (block * 64 + offset)
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks]
  const int32_t* positions = nullptr;     // [num_rows]; read with a window or a causal limit
  int32_t max_path = 0;                   // where it is 1, paths are taken to be rare
  int32_t max_blocks = 0;
  int32_t max_kv_len = 0;  // host bound on kv_len + path_len, for grid sizes only
  int32_t num_seqs = 1;    // about how many share the rows, for tile sizes only

  int32_t sliding_window = 0;  // 0: none; otherwise keys at positions > position - sliding_window
  bool causal = false;         // keys beyond the row's own position are not seen
  int32_t num_rows = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // num_heads / num_kv_heads is at most 16
  int32_t head_dim = 0;      // 64 or 128
  float softmax_scale = 0;

  void* workspace = nullptr;  // gqa_attention_workspace_bytes() bytes, 256-byte aligned
};

// A launch error, or cudaErrorInvalidValue for a shape it does not cover.
cudaError_t gqa_attention(const GqaAttentionParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
