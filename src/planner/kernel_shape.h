// Kernels by their shapes: what a measurement of one tells, and what it asks of the GPU.
#pragma once

#include <string>

#include "backend/cost/op_cost.h"

namespace coppice {

// One measured call. Fields that an op does not have are 0.
struct MeasuredKernel {
  std::string op;                // its name in backend.h
  std::int64_t rows = 0;         // T; trees: nodes of one tree
  std::int64_t outputs = 0;      // linear: out_features; moe_experts: intermediate_size;
                                 // top_k_log_probs: k; attention: kv_lora_rank or head_dim
  std::int64_t inputs = 0;       // linear: in_features; moe_experts: hidden_size; vocabulary ops:
                                 // vocab_size; attention: width of a cache row
  std::int64_t heads = 0;        // attention, head_linear
  std::int64_t sequences = 0;    // attention, trees
  std::int64_t context = 0;      // attention: cached positions of each sequence
  std::int64_t num_experts = 0;  // moe_experts
  std::int64_t top_k = 0;        // moe_experts
  double us = 0;
};

// The counting backend's rule for it. Ops it has no shape for give an OpCost with the name alone.
OpCost cost_of(const MeasuredKernel& kernel);

}  // namespace coppice
