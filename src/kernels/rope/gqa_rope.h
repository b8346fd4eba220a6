// Before grouped-query attention: optional per-head RMS norm of q and k (Qwen3), rotation over the
// whole head, write of k and v to the paged cache.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

struct GqaRopeParams {
  void* q = nullptr;         // bf16 [num_rows, num_heads, head_dim], in place; null: no queries
  const void* k = nullptr;   // bf16 [num_rows, num_kv_heads, head_dim]
  const void* v = nullptr;   // the same shape
  int64_t q_row_stride = 0;  // elements; even
  int64_t k_row_stride = 0;
  int64_t v_row_stride = 0;
  const float* q_norm = nullptr;  // f32 [head_dim], or null
  const float* k_norm = nullptr;  // f32 [head_dim], or null
  float eps = 0;
  bool interleaved = false;            // pairs (2i, 2i + 1); otherwise (i, i + head_dim / 2)
  const float* cos_sin = nullptr;      // f32 [max_positions, head_dim]: cosines, then sines
  const int32_t* positions = nullptr;  // [num_rows]
  const int32_t* slots = nullptr;      // [num_rows]; -1: nothing is written to the caches
  void* k_cache = nullptr;             // bf16 [num_slots, num_kv_heads * head_dim]
  void* v_cache = nullptr;             // the same shape
  int32_t num_rows = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // 64, 128 or 256
};

cudaError_t gqa_rope_and_write_kv(const GqaRopeParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
