// Multiplying INT4 cells (expert_blob.h) with rows of inputs, both in shared memory.
//
// Weights are the 16-row operand of the MMA and tokens its eight columns, so a cell is turned into
// registers once and serves every row routed to the expert. A pair of nibbles becomes a pair of
// bf16 by one logic operation and a quarter of their values by one multiply-add, both exact: sums
// are quarters too, with the same bits but for the exponent, until `whole` makes results of them.
// A group's sum starts at zero; its scale is applied once, to the fp32 sum. Within a group of 32
// inputs lane q takes inputs 8 q to 8 q + 7 for both operands.
#pragma once

#include "kernels/common/mma.cuh"
#include "kernels/moe/expert_blob.h"

namespace coppice::kernels {

// A quarter of the values u - 8 of nibbles i and i + 4 of an interleaved word as a pair of bf16. In
// bits 0 to 3 of a bf16 128 a nibble makes it 128 + u. In bits 4 to 7 of zero it makes u 2^-129,
// with the exponent's lowest bit: below 2^-125 bf16 is a fixed-point format. Two nibbles a shift.
__device__ inline uint32_t nibble_pair(uint32_t word, int i) {
  const uint32_t at = i >= 2 ? word >> 8 : word;
  uint32_t pair;
  if (i % 2 == 0) {
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;"  // at & 0x000F000F | 128
        : "=r"(pair)
        : "r"(at), "n"(0x000F000F), "r"(0x43004300));
    asm("fma.rn.bf16x2 %0, %0, %1, %2;"  // / 4 - 34
        : "+r"(pair)
        : "r"(0x3E803E80), "r"(0xC208C208));
  } else {
    pair = at & 0x00F000F0;
    asm("fma.rn.bf16x2 %0, %0, %1, %2;"  // 2^127 - 2
        : "+r"(pair)
        : "r"(0x7F007F00), "r"(0xC000C000));
  }
  return pair;
}

// Results of the sums of quarters.
__device__ inline float whole(float quarters) {
  return __fmul_rn(4.0f, quarters);
}
__device__ inline float4 whole(float4 quarters) {
  return make_float4(whole(quarters.x), whole(quarters.y), whole(quarters.z), whole(quarters.w));
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
  constexpr int kGroups = kColumns > 2 ? 1 : 2;  // at once: registers
  const int lane = threadIdx.x % 32;
  uint32_t seen = 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll kGroups
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
