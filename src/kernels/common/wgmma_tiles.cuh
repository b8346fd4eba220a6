// Warpgroup products of 64 rows by 8 to 256 columns, both operands K-major in shared memory,
// sm_90a.
#pragma once

#include "kernels/common/wgmma.cuh"

namespace coppice::kernels {

#define COPPICE_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define COPPICE_D8(d, i) COPPICE_D4(d, i), COPPICE_D4(d, i + 4)
#define COPPICE_D16(d, i) COPPICE_D8(d, i), COPPICE_D8(d, i + 8)
#define COPPICE_D32(d, i) COPPICE_D16(d, i), COPPICE_D16(d, i + 16)
#define COPPICE_D64(d, i) COPPICE_D32(d, i), COPPICE_D32(d, i + 32)

// D[64, kColumns] (+)= A[64, 16] B[16, kColumns]: of warp w, lane l: d[4 n + 2 h + e] is row
// 16 w + 8 h + l / 4, column 8 n + 2 (l % 4) + e.
template <int kColumns>
__device__ __forceinline__ void wgmma_m64_ss(float (&d)[kColumns / 2], uint64_t a_desc,
                                             uint64_t b_desc, int accumulate) {
  static_assert(kColumns == 8 || kColumns == 16 || kColumns == 24 || kColumns == 32 ||
                kColumns == 48 || kColumns == 64 || kColumns == 128 || kColumns == 160 ||
                kColumns == 192 || kColumns == 256);
  if constexpr (kColumns == 8) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, "
        "%4, %5, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D4(d, 0)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  } else if constexpr (kColumns == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D8(d, 0)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  } else if constexpr (kColumns == 24) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %14, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, "
        "%12, %13, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D8(d, 0), COPPICE_D4(d, 8)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  } else if constexpr (kColumns == 32) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D16(d, 0)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  } else if constexpr (kColumns == 48) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23}, "
        "%24, %25, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D16(d, 0), COPPICE_D8(d, 16)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  } else if constexpr (kColumns == 64) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D32(d, 0)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  } else if constexpr (kColumns == 128) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D64(d, 0)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  } else if constexpr (kColumns == 160) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
        "%80, %81, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D64(d, 0), COPPICE_D16(d, 64)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  } else if constexpr (kColumns == 192) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D64(d, 0), COPPICE_D32(d, 64)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  } else if constexpr (kColumns == 256) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "
        "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "
        "%126, %127}, "
        "%128, %129, p, 1, 1, 0, 0;\n}\n"
        : COPPICE_D64(d, 0), COPPICE_D64(d, 64)
        : "l"(a_desc), "l"(b_desc), "r"(accumulate));
  }
}

#undef COPPICE_D4
#undef COPPICE_D8
#undef COPPICE_D16
#undef COPPICE_D32
#undef COPPICE_D64

}  // namespace coppice::kernels
