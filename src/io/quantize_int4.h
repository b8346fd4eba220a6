// Symmetric 4-bit quantisation in groups of 32 along the input dimension, as compressed-tensors
// `pack-quantized` stores it and Kimi-K2-Thinking was trained with.
#pragma once

#include <cstdint>
#include <span>

#include "base/half.h"

namespace coppice {

inline constexpr std::int64_t kInt4GroupSize = 32;
inline constexpr std::int64_t kInt4PerWord = 8;

// One row of a weight. Per group: scale = max(max |w| / 7, 1e-5) rounded to bf16, q = w / scale
// rounded to nearest even (in [-7, 7]), stored as q + 8 at bits 4 (j mod 8) of word j
// / 8.
//   row    [cols], finite; cols a multiple of 32
//   words  [cols / 8]
//   scales [cols / 32]
// Returns the sum of squared errors of q * scale.
double quantize_int4_row(std::span<const float> row, std::int32_t* words, bf16* scales);

}  // namespace coppice
