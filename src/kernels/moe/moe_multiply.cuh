// Multiplying INT4 cells (expert_blob.h) with rows of inputs, both in shared memory.
//
// Weights are the 16-row operand of the MMA and tokens its eight columns, so a cell is turned into
// registers once and serves every row routed to the expert. Nibbles become bf16 128 + u = 136 +
// value by one logic operation per pair and value by a subtraction, both exact. A group's sum
// starts at zero; its scale is applied once, to the fp32 sum. Within a group of 32 inputs lane q
// takes inputs 8 q to 8 q + 7 for both operands.
#pragma once

#include "kernels/common/mma.cuh"
#include "kernels/moe/expert_blob.h"

namespace coppice::kernels {

// Values of nibbles i and i + 4 of an interleaved word as a pair of bf16.
__device__ inline uint32_t nibble_pair(uint32_t word, int i) {
  uint32_t pair;  // (word >> 4 i) & 0x000F000F | 0x43004300, one instruction after the shift
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;"
      : "=r"(pair)
      : "r"(word >> (4 * i)), "n"(0x000F000F), "r"(0x43004300));
  asm("sub.rn.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x43084308));
  return pair;
}

__device__ inline void add_scaled(float4& sum, float4 group, uint32_t scales) {
  const float low = __uint_as_float(scales << 16), high = __uint_as_float(scales & 0xFFFF0000u);
  sum.x = __fmaf_rn(group.x, low, sum.x);
  sum.y = __fmaf_rn(group.y, low, sum.y);
  sum.z = __fmaf_rn(group.z, high, sum.z);
  sum.w = __fmaf_rn(group.w, high, sum.w);
}

// One group of 32 inputs of a cell: `words` holds rows g, g + 8 of two m16 tiles, `scales` theirs.
template <int kColumns>
__device__ inline void multiply_group(float4 (&sum)[2][kColumns], const uint4& words, uint2 scales,
                                      const uint4 (&x)[kColumns]) {
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
  const uint32_t s[2] = {scales.x, scales.y};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = nibble_pair(w[2 * half], i);
      b[i] = nibble_pair(w[2 * half + 1], i);
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      float4 group =
          mma_m16n8k16_bf16(a[0], b[0], a[1], b[1], x[n].x, x[n].y, make_float4(0, 0, 0, 0));
      group = mma_m16n8k16_bf16(a[2], b[2], a[3], b[3], x[n].z, x[n].w, group);
      add_scaled(sum[half][n], group, s[half]);
    }
  }
}

// This warp's cells of one ring stage: kSteps steps of kTiles blocks of outputs. `cells` points at
// its cell of step 0, `inputs` at lane q's bytes of the first token in step 0, `row[n]` is the
// offset of the token in column 8 n + g.
// Returns a word that depends on every load of the stage: for mbarrier_arrive_after.
template <int kTiles, int kColumns, int kSteps>
__device__ inline uint32_t multiply_stage(float4 (&sum)[kTiles][2][kColumns], const uint8_t* cells,
                                          const uint8_t* inputs, const int (&row)[kColumns],
                                          int step_input_bytes) {
  const int lane = threadIdx.x % 32;
  uint32_t seen = 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      uint4 x[kColumns];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        x[n] = *reinterpret_cast<const uint4*>(inputs + row[n] + i * step_input_bytes + group * 64);
        seen |= x[n].x;
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint8_t* cell = cells + (t * kSteps + i) * kStepBytes;
        const uint4 words = *reinterpret_cast<const uint4*>(cell + group * 512 + lane * 16);
        const uint2 scales =
            *reinterpret_cast<const uint2*>(cell + 1024 + lane / 4 * 16 + group * 8);
        seen |= words.x | scales.x;
        multiply_group(sum[t], words, scales, x);
      }
    }
  }
  return seen;
}

}  // namespace coppice::kernels
