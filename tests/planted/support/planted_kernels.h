// Slow kernels that can be told to make the mistakes the exactness test is there for. Device
// pointers; each call waits for the device.
#pragma once

#include <cstdint>

namespace coppice::testing {

// out = x W^T; K in `segments` parts, each summed from zero, then added, backwards if `reversed`.
// With `leak` every row adds zero times the last row's first element: harmless unless that is NaN.
struct PlantedLinear {
  const void* x;       // bf16 [num_rows, inputs]
  const void* weight;  // bf16 [outputs, inputs]
  void* out;           // bf16 or f32 [num_rows, outputs]
  std::int64_t x_stride, out_stride;
  int num_rows, outputs, inputs;
  int segments;
  bool out_is_f32, reversed, leak;
};
void planted_linear(const PlantedLinear& args);

// RMS norm by so many threads a row, a power of two: they fix the reduction tree. With delta, x is
// the residual stream and becomes x + delta first.
struct PlantedNorm {
  void* x;              // bf16 [num_rows, size]
  const void* delta;    // bf16 [num_rows, size], dense; or null
  const float* weight;  // [size]
  void* out;            // bf16 [num_rows, size]
  std::int64_t x_stride, out_stride;
  int num_rows, size, threads;
  float eps;
};
void planted_norm(const PlantedNorm& args);

// Weight-absorbed MLA over the paged cache; a row's keys in `splits` equal runs, merged.
struct PlantedMla {
  const void* q_lat;  // bf16 [num_rows, num_heads, rank]
  const void* q_pe;   // bf16 [num_rows, num_heads, rope_dim]
  std::int64_t q_pe_stride;
  const void* cache;  // bf16 [slots, rank + rope_dim]
  void* out;          // bf16 [num_rows, num_heads, rank]
  const std::int32_t *seq_of_row, *kv_len, *path_len, *path, *block_tables;
  int num_rows, num_heads, rank, rope_dim, max_path, max_blocks, splits;
  float scale;
};
void planted_mla(const PlantedMla& args);

// Rows without a token become NaN.
void poison_rows(void* x, std::int64_t stride, int num_rows, int size,
                 const std::int32_t* token_ids);

}  // namespace coppice::testing
