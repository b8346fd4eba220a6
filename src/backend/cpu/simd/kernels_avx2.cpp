// The avx2 copy of the kernels.
#include "backend/cpu/simd/vector_avx2.h"

#include "backend/cpu/simd/row_impl.h"

#include "backend/cpu/simd/attention_impl.h"
#include "backend/cpu/simd/matmul_impl.h"

namespace coppice::cpu::simd {

const Kernels* avx2_table() {
  static constexpr Kernels kKernels{.name = "avx2",
                                    .quantize = quantize,
                                    .matmul = matmul,
                                    .attention_step = attention_step,
                                    .attention_finish = attention_finish,
                                    .rms_norm = rms_norm,
                                    .add = add,
                                    .weighted_sum = weighted_sum,
                                    .silu_mul = silu_mul};
  return &kKernels;
}

}  // namespace coppice::cpu::simd
