// Turns compressed-tensors `pack-quantized` expert weights into the blob of expert_blob.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// Source layout: int32 words [experts, rows, inputs / 8], the low nibble first, value = nibble - 8;
// scales bf16 [experts, rows, inputs / 32]. All pointers are device memory.
struct RepackExpertsParams {
  const int32_t* packed = nullptr;
  const void* scale = nullptr;
  // Set for gate and up: `packed` is gate, this is up, both [experts, rows, inputs / 8]; the blob
  // then holds 2 * rows outputs, eight of gate followed by the same eight of up.
  const int32_t* packed_up = nullptr;
  const void* scale_up = nullptr;
  void* blob = nullptr;  // experts * expert_blob_bytes(...), 128-byte aligned
  int num_experts = 0;
  int rows = 0;    // of one source matrix
  int inputs = 0;  // a multiple of 32
};

cudaError_t repack_experts(const RepackExpertsParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
