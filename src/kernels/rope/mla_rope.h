// Before MLA attention: norm of the latent, rotation of k_pe and q_pe (interleaved pairs, YaRN
// frequencies in the table), write of [latent | k_pe] to the paged cache. DeepSeek-V2, arXiv
// 2405.04434, section 2.1.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

struct MlaRopeParams {
  void* q_pe = nullptr;         // bf16 [num_rows, num_heads, rope_dim], rotated in place
  int64_t q_pe_row_stride = 0;  // elements; all strides are multiples of 8
  int64_t q_pe_head_stride = 0;
  const void* kv_a = nullptr;  // bf16 [num_rows, kv_lora_rank + rope_dim]
  int64_t kv_a_row_stride = 0;
  const float* kv_norm = nullptr;  // f32 [kv_lora_rank]
  float eps = 0;
  const float* cos_sin = nullptr;      // f32 [max_positions, rope_dim]: cosines, then sines
  const int32_t* positions = nullptr;  // [num_rows]
  const int32_t* slots = nullptr;      // [num_rows]; -1: nothing is written to the cache
  void* cache = nullptr;               // bf16 [num_slots, kv_lora_rank + rope_dim]
  int32_t num_rows = 0;
  int32_t num_heads = 0;
  int32_t kv_lora_rank = 0;  // multiple of 8, at most 8192
  int32_t rope_dim = 0;      // multiple of 8
};

// The latent's norm has the bits of rms_norm() over kv_lora_rank.
cudaError_t mla_rope_and_write_kv(const MlaRopeParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
