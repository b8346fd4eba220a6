// The blob of expert_blob.h made on the host: the same bytes as repack_experts.h leaves.
#pragma once

#include <cstdint>

namespace coppice::kernels {

// One expert's matrix in the layout of repack_experts.h, in host memory.
struct HostExpertMatrix {
  const std::int32_t* packed = nullptr;     // [rows, inputs / 8]
  const std::uint16_t* scale = nullptr;     // bf16 [rows, inputs / 32]
  const std::int32_t* packed_up = nullptr;  // with gate in `packed`: the blob holds both
  const std::uint16_t* scale_up = nullptr;
  int rows = 0;    // of one source matrix
  int inputs = 0;  // a multiple of 32
};

// blob: expert_blob_bytes(expert_blob_shape(outputs, inputs)) bytes.
void repack_on_host(const HostExpertMatrix& matrix, std::uint8_t* blob);

}  // namespace coppice::kernels
