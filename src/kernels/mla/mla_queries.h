// What lies between the first projection of an MLA layer and its attention, for few rows: norm of
// the compressed query, q_b, rotation, absorption of W_UK; norm of the latent, rotation of its key
// and the write of both to the paged cache (DeepSeek-V2, arXiv 2405.04434, section 2.1).
//
// Bit for bit the same as rms_norm, skinny_gemm, skinny_gemm over heads and mla_rope_and_write_kv
// in that order, without their launches. Hopper alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/mla/mla_queries_config.h"

namespace coppice::kernels {

struct MlaQueriesParams {
  const void* qkv_a = nullptr;         // bf16 [num_rows, 1536 + 512 + 64], 16-byte aligned
  int64_t qkv_a_stride = 0;            // elements between rows; all strides are multiples of 8
  const float* q_norm = nullptr;       // f32 [1536]
  const float* kv_norm = nullptr;      // f32 [512]
  float eps = 0;                       // of both norms
  const void* q_b = nullptr;           // bf16 [num_heads * 128 + num_heads * 64, 1536]
  const void* k_absorbed = nullptr;    // bf16 [num_heads, 512, 128]
  const float* cos_sin = nullptr;      // f32 [max_positions, 64]: cosines, then sines
  const int32_t* positions = nullptr;  // [num_rows]
  const int32_t* slots = nullptr;      // [num_rows]; -1: nothing is written to the cache
  void* cache = nullptr;               // bf16 [num_slots, 576]
  void* q_lat = nullptr;               // bf16 [num_rows, num_heads, 512], dense
  void* q_pe = nullptr;                // bf16 [num_rows, num_heads, 64], rotated
  int64_t q_pe_row_stride = 0;
  int64_t q_pe_head_stride = 0;
  int num_rows = 0;
  int num_heads = 0;
};

// Enqueues on `stream`; capturable.
cudaError_t mla_queries(const MlaQueriesParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
