#include "backend/cpu/simd/watched.h"

namespace coppice::cpu::simd {
namespace {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

}  // namespace

const Kernels* avx2_kernels() {
  return has_avx2() ? watched_avx2_table() : nullptr;
}

const Kernels* avx512_kernels() {
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vnni");
  return has_avx2() && has_avx512 ? watched_avx512_table() : nullptr;
}

}  // namespace coppice::cpu::simd
