// Weight-absorbed MLA attention over a paged latent cache, for decoding, tree verification and
// prefill rows alike.
//
// Every row (token) brings num_heads queries; all heads read the same cache row, whose first
// kv_lora_rank columns are also the value. A row sees positions 0 .. kv_len-1 through its
// sequence's block table, then path_len keys at explicit slots (its undecided ancestors, root
// first, and itself). A row's result is the same bits whatever else is in the batch, however the
// work is spread over the GPU, and whether its last keys came through the table or the path.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace coppice::kernels {

struct MlaAttentionParams {
  const void* q_lat = nullptr;   // bf16 [num_rows, num_heads, kv_lora_rank]
  const void* q_pe = nullptr;    // bf16 [num_rows, num_heads, qk_rope_head_dim], rotated
  int64_t q_pe_row_stride = 0;   // elements from one row's q_pe to the next; multiple of 8
  int64_t q_pe_head_stride = 0;  // elements from one head's q_pe to the next; multiple of 8
  const void* cache = nullptr;   // bf16 [num_blocks, 64, kv_lora_rank + qk_rope_head_dim]
  void* o_lat = nullptr;         // bf16 [num_rows, num_heads, kv_lora_rank]

  // Batch metadata in device memory. Rows of one sequence are neighbours.
  const int32_t* seq_of_row = nullptr;    // [num_rows]; -1: inert row, its output is zero
  const int32_t* kv_len = nullptr;        // [num_rows]
  const int32_t* path_len = nullptr;      // [num_rows]
  const int32_t* path = nullptr;          // [num_rows, max_path] slots (block * 64 + offset)
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks]
  int32_t max_path = 0;
  int32_t max_blocks = 0;

  int32_t num_rows = 0;
  int32_t num_heads = 0;
  int32_t num_blocks = 0;
  int32_t kv_lora_rank = 0;
  int32_t qk_rope_head_dim = 0;
  float softmax_scale = 0;
  // Prompt rows: path_len 0. They have a form of their own, faster over many rows, with bits of its
  // own; decided rows of any number share the other.
  bool prompt = false;

  void* workspace = nullptr;  // mla_attention_workspace_bytes() bytes, 256-byte aligned
};

// Bytes of workspace for steps of at most `max_rows` rows. One workspace serves all layers.
size_t mla_attention_workspace_bytes(int max_rows, int max_path);

// Turns the batch metadata into tiles, tail passes and a work list, kept in the workspace. Once per
// step, before the first layer; reads no query and no cache. Both return a launch error, or
// cudaErrorInvalidValue for a shape they do not cover.
cudaError_t mla_plan(const MlaAttentionParams& params, cudaStream_t stream);

// One layer's attention, after mla_plan for the same metadata. kv_lora_rank 512 with
// qk_rope_head_dim 64 and up to 64 heads runs on the tensor cores of Hopper;
// other shapes and GPUs take a plain path.
cudaError_t mla_attention(const MlaAttentionParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
