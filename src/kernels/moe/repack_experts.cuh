// Device side of repack_experts.h: one warp writes one cell.
#pragma once

#include "kernels/moe/expert_blob.h"
#include "kernels/moe/repack_experts.h"

namespace coppice::kernels {

// Nibbles 0..7 to the order 0 2 4 6 1 3 5 7: masking (word >> 4 i) with 0x000F000F then yields the
// neighbours 2 i and 2 i + 1 in the two halves of a register.
__device__ inline uint32_t interleave_nibbles(uint32_t word) {
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= (word >> (8 * i) & 0xF) << (4 * i);
    result |= (word >> (8 * i + 4) & 0xF) << (4 * i + 16);
  }
  return result;
}

__global__ void repack_experts_kernel(RepackExpertsParams p, ExpertBlobShape shape,
                                      int64_t expert_bytes) {
  constexpr uint32_t kZeros = 0x88888888;  // eight times the value 0
  const int cell = blockIdx.x;             // within the expert
  const int warp = cell % kStepCells;
  const int step = cell / kStepCells % shape.steps;
  const int block = cell / kStepCells / shape.steps;
  const int tile = block * (kStepCells / shape.warps_k) + warp / shape.warps_k;
  const int first_input = (step * shape.warps_k + warp % shape.warps_k) * kCellInputs;
  const int g = threadIdx.x / 4, q = threadIdx.x % 4;
  const int64_t expert = blockIdx.y;

  auto* out = static_cast<uint8_t*>(p.blob) + expert * expert_bytes + int64_t{cell} * kCellBytes;
  for (int group = 0; group < 2; ++group) {
    const int input = first_input + group * kQuantGroup;
    for (int half = 0; half < 4; ++half) {  // (m16 tile, row g or g + 8)
      const int tile16 = tile * 2 + half / 2;
      const bool second = half % 2;
      const bool up = second && p.packed_up;
      const int row = p.packed_up ? tile16 * 8 + g : tile16 * 16 + second * 8 + g;
      const bool exists = row < p.rows && input < p.inputs;
      const int64_t source_row = expert * p.rows + row;
      const auto* words = reinterpret_cast<const uint32_t*>(up ? p.packed_up : p.packed);
      const auto* scales = static_cast<const uint16_t*>(up ? p.scale_up : p.scale);
      const uint32_t word = exists ? words[source_row * (p.inputs / 8) + input / 8 + q] : kZeros;
      reinterpret_cast<uint32_t*>(out)[group * 128 + threadIdx.x * 4 + half] =
          interleave_nibbles(word);
      if (q == 0) {
        reinterpret_cast<uint16_t*>(out + 1024)[g * 8 + group * 4 + half] =
            exists ? scales[source_row * (p.inputs / kQuantGroup) + input / kQuantGroup] : 0;
      }
    }
  }
}

}  // namespace coppice::kernels
