// out = x W^T for few rows: the dense projections of decoding and the lm_head.
//
// A row's bits depend on its own input and on the weight alone, never on the other rows or on
// num_tokens: the weight's shape fixes how the inputs are cut into segments, each segment starts
// from zero and segments are added in order. Hopper alone.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace coppice::kernels {

struct SkinnyGemmParams {
  const void* x = nullptr;       // bf16 [num_tokens, num_heads, inputs], 16-byte aligned
  const void* weight = nullptr;  // bf16 [num_heads, outputs, inputs], dense, 16-byte aligned
  void* out = nullptr;           // bf16 or fp32 [num_tokens, num_heads, outputs], 16-byte aligned
  int num_tokens = 0;            // 0 and more
  int num_heads = 1;             // each has its own inputs and weight
  int outputs = 0;               // a multiple of 16
  int inputs = 0;                // a multiple of 64
  int64_t x_stride = 0;          // elements between tokens, a multiple of 8
  int64_t out_stride = 0;        // elements between tokens, a multiple of 4
  bool out_is_float = false;
};

// Enqueues on `stream`; capturable. Returns cudaErrorInvalidValue for shapes outside the limits.
cudaError_t skinny_gemm(const SkinnyGemmParams& params, cudaStream_t stream);

// Two products of the same x, one head each, in one launch where their inputs are cut alike: the
// same bits as one after the other.
cudaError_t skinny_gemm_pair(const SkinnyGemmParams& first, const SkinnyGemmParams& second,
                             cudaStream_t stream);

// skinny_gemm with a tile of the caller's choice, for measurements: no tile changes a bit.
// num_tokens is positive.
struct SkinnyGemmTiles;
cudaError_t skinny_gemm_with(const SkinnyGemmParams& params, const SkinnyGemmTiles& tiles,
                             cudaStream_t stream);

}  // namespace coppice::kernels
