// Warp-wide matrix products.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// d = a b + c, a [16, 16] and b [16, 8] in bf16, c and d [16, 8] in fp32, in the fragment layout of
// mma.m16n8k16: with g = lane / 4 and q = lane % 4, a = rows g, g + 8 at k 2q, then at k 2q + 8;
// b = column g at k 2q, then 2q + 8; d = (row g, columns 2q, 2q + 1), (row g + 8, the same).
__device__ inline float4 mma_m16n8k16_bf16(uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           uint32_t b0, uint32_t b1, float4 c) {
  float4 d;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c.x), "f"(c.y), "f"(c.z),
        "f"(c.w));
  return d;
}

}  // namespace coppice::kernels
