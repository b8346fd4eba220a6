// Reference projections over DenseMatrix weights.
#pragma once

#include "backend/cpu/dense_matrix.h"

namespace coppice::cpu {

void linear(const LinearArgs& args, const DenseMatrix& weight, ThreadPool& pool);
void head_linear(const HeadLinearArgs& args, const DenseMatrix& weight, ThreadPool& pool);

}  // namespace coppice::cpu
