// Under ThreadSanitizer the kernels are compiled plainly: their inner loops load the same bytes
// over and over, and watching each load took most of the tests' time. Each call says instead, once,
// which memory it reads and writes.
#pragma once

#include "backend/cpu/simd/kernels.h"

namespace coppice::cpu::simd {

const Kernels* avx2_table();
const Kernels* avx512_table();

// The tables above, or, under ThreadSanitizer, tables of functions that announce a call's memory
// and forward to them.
const Kernels* watched_avx2_table();
const Kernels* watched_avx512_table();

}  // namespace coppice::cpu::simd
