// Warpgroup MMA (wgmma) for bf16 operands with fp32 accumulators, sm_90a.
//
// Operands in shared memory use the 128-byte swizzle: an operand tile is a stack of blocks, each
// 64 elements (128 bytes) wide, whose 16-byte chunk c of row r is stored at chunk c ^ (r % 8).
// Blocks must start at multiples of 1024 bytes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// An operand tile in shared memory. `low` passes through an empty asm so that the compiler adds
// offsets where they are used instead of keeping every descriptor of an unrolled loop in registers.
struct WgmmaOperand {
  uint32_t low, high;
  // Descriptor of the part `bytes` further on. A K-major tile steps 16 in K every 32 bytes (inside
  // a block), an N-major tile every 2048 bytes.
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
    return static_cast<uint64_t>(high) << 32 | (low + (bytes >> 4));
  }
};

constexpr uint32_t kWgmmaSwizzle128 = 1u << 30 | 1024 >> 4;  // 1024 bytes per group of 8 rows

// Contiguous axis K: blocks of rows that hold 64 K-elements.
__device__ __forceinline__ WgmmaOperand wgmma_k_major(uint32_t smem_address) {
  uint32_t low = (smem_address & 0x3FFFF) >> 4 | 1u << 16;
  asm volatile("" : "+r"(low));
  return {low, kWgmmaSwizzle128};
}

// Contiguous axis N: rows are K and hold 64 N-elements; `block_bytes` lies between neighbouring
// groups of 64 N.
__device__ __forceinline__ WgmmaOperand wgmma_n_major(uint32_t smem_address, uint32_t block_bytes) {
  uint32_t low = (smem_address & 0x3FFFF) >> 4 | (block_bytes >> 4) << 16;
  asm volatile("" : "+r"(low));
  return {low, kWgmmaSwizzle128};
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of registers that an MMA in flight reads or writes across
// this point.
template <int kCount>
__device__ __forceinline__ void wgmma_hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void wgmma_hold(uint32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+r"(d[i])::"memory");
}

#define COPPICE_WGMMA_D8(d, i)                                                                \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define COPPICE_WGMMA_D32(d) COPPICE_WGMMA_D32_AT(d, 0)
#define COPPICE_WGMMA_D32_AT(d, i)                                                 \
  COPPICE_WGMMA_D8(d, i), COPPICE_WGMMA_D8(d, i + 8), COPPICE_WGMMA_D8(d, i + 16), \
      COPPICE_WGMMA_D8(d, i + 24)
#define COPPICE_WGMMA_D128(d)                                                           \
  COPPICE_WGMMA_D32_AT(d, 0), COPPICE_WGMMA_D32_AT(d, 32), COPPICE_WGMMA_D32_AT(d, 64), \
      COPPICE_WGMMA_D32_AT(d, 96)

// D[64, 64] (+)= A[64, 16] B[64, 16]^T, both K-major in shared memory.
__device__ __forceinline__ void wgmma_m64n64_ss(float (&d)[32], uint64_t a_desc, uint64_t b_desc,
                                                int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : COPPICE_WGMMA_D32(d)
      : "l"(a_desc), "l"(b_desc), "r"(accumulate));
}

// D[64, 256] (+)= A[64, 16] B[16, 256], A K-major and B N-major in shared memory.
__device__ __forceinline__ void wgmma_m64n256_ss(float (&d)[128], uint64_t a_desc, uint64_t b_desc,
                                                 int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "%128, %129, p, 1, 1, 0, 1;\n}\n"
      : COPPICE_WGMMA_D128(d)
      : "l"(a_desc), "l"(b_desc), "r"(accumulate));
}

// The same with A in registers (the fragment layout of mma.sync m16n8k16, one warp per 16 rows).
__device__ __forceinline__ void wgmma_m64n256_rs(float (&d)[128], const uint32_t (&a)[4],
                                                 uint64_t b_desc, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "{%128, %129, %130, %131}, %132, p, 1, 1, 1;\n}\n"
      : COPPICE_WGMMA_D128(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc), "r"(accumulate));
}

// D[64, N] (+)= A[64, 16] B[N, 16]^T with A in registers (the fragment layout of mma.sync m16n8k16,
// one warp per 16 rows) and B K-major in shared memory; D has N / 2 elements a thread.
__device__ __forceinline__ void wgmma_rs(float (&d)[8], const uint32_t (&a)[4], uint64_t b_desc,
                                         int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;\n}\n"
      : COPPICE_WGMMA_D8(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc), "r"(accumulate));
}
__device__ __forceinline__ void wgmma_rs(float (&d)[12], const uint32_t (&a)[4], uint64_t b_desc,
                                         int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %17, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, %16, p, 1, 1, "
      "0;\n}\n"
      : COPPICE_WGMMA_D8(d, 0), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc), "r"(accumulate));
}
__device__ __forceinline__ void wgmma_rs(float (&d)[16], const uint32_t (&a)[4], uint64_t b_desc,
                                         int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}\n"
      : COPPICE_WGMMA_D8(d, 0), COPPICE_WGMMA_D8(d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc), "r"(accumulate));
}
__device__ __forceinline__ void wgmma_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b_desc,
                                         int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
      : COPPICE_WGMMA_D32(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc), "r"(accumulate));
}

#undef COPPICE_WGMMA_D8
#undef COPPICE_WGMMA_D32
#undef COPPICE_WGMMA_D32_AT
#undef COPPICE_WGMMA_D128

}  // namespace coppice::kernels
