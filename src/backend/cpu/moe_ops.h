// Reference experts over DenseExpert weights.
#pragma once

#include <vector>

#include "backend/cpu/dense_matrix.h"

namespace coppice::cpu {

// hidden: workspace of at least T * top_k * intermediate_size floats.
void moe_experts(const MoeExpertsArgs& args, const std::vector<DenseExpert>& experts, float* hidden,
                 ThreadPool& pool);

}  // namespace coppice::cpu
