// Row-wise helpers of a forward pass: embedding lookup, SiLU(gate) * up, gather of rows,
// products of any shape.
// Every row is computed alone.
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
  std::int64_t size;
};
cudaError_t silu_mul(const SiluMulParams& params, cudaStream_t stream);

struct GatherRowsParams {
  const void* src;
  const std::int32_t* rows;  // [num_rows]; a negative row leaves the output row as it is
  void* out;
  std::int64_t num_rows;
  std::int64_t row_bytes;  // even, and so are the strides
  std::int64_t src_stride_bytes;
  std::int64_t out_stride_bytes;
};
cudaError_t gather_rows(const GatherRowsParams& params, cudaStream_t stream);

// out = x W^T for shapes the tensor-core kernels do not take: one warp an output, the inputs added
// in an order that their number alone fixes.
struct RowProductParams {
  const void* x;            // bf16 [num_rows, num_heads, inputs]
  const void* weight;       // bf16 [num_heads, outputs, inputs]
  void* out;                // bf16 or f32 [num_rows, num_heads, outputs]
  std::int64_t x_stride;    // elements between rows
  std::int64_t out_stride;  // elements between rows
  std::int64_t num_rows;
  std::int64_t num_heads;
  std::int64_t outputs;
  std::int64_t inputs;
  bool out_is_f32;
};
cudaError_t row_product(const RowProductParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
