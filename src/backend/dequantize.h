// Checkpoint formats to fp32, exactly: a quantised value times its scale, rounded once to fp32.
#pragma once

#include "backend/op_args.h"

namespace coppice {

// Elements of one quantisation group of the block formats.
inline constexpr std::int64_t kQuantGroup = 32;

// Aborts unless the matrix is complete and its columns suit its format.
void check_matrix(const HostMatrix& matrix);

// out [matrix.cols]: row `row` of the matrix.
void dequantize_row(const HostMatrix& matrix, std::int64_t row, float* out);

}  // namespace coppice
