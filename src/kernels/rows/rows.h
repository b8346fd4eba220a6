// Row-wise helpers of a forward pass: embedding lookup, SiLU(gate) * up, gather of rows. Every row
// is computed alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

struct EmbedParams {
  const std::int32_t* token_ids;  // [num_rows]; negative: a row of zeros
  const void* table;              // [vocab_size, hidden_size] bf16, or f32 if table_is_f32
  bool table_is_f32;
  void* out;  // [num_rows, hidden_size] bf16
  std::int64_t num_rows;
  std::int64_t hidden_size;  // a multiple of 2
};
cudaError_t embed(const EmbedParams& params, cudaStream_t stream);

struct SiluMulParams {
  const void* gate_up;          // [num_rows, 2 * size] bf16: gate columns, then up columns
  std::int64_t gate_up_stride;  // elements between rows
  void* out;                    // [num_rows, size] bf16
  std::int64_t out_stride;
  std::int64_t num_rows;
  std::int64_t size;  // a multiple of 2
};
cudaError_t silu_mul(const SiluMulParams& params, cudaStream_t stream);

struct GatherRowsParams {
  const void* src;
  const std::int32_t* rows;  // [num_rows]; a negative row leaves the output row as it is
  void* out;
  std::int64_t num_rows;
  std::int64_t row_bytes;         // a multiple of 4
  std::int64_t src_stride_bytes;  // a multiple of 4
  std::int64_t out_stride_bytes;  // a multiple of 4
};
cudaError_t gather_rows(const GatherRowsParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
