#include "backend/cost/op_cost.h"

#include <cmath>

namespace coppice {

const char* name_of(CostKind kind) {
  switch (kind) {
    case CostKind::kDense:
      return "dense";
    case CostKind::kExperts:
      return "experts";
    case CostKind::kAttention:
      return "attention";
    case CostKind::kRows:
      return "rows";
    case CostKind::kVocab:
      return "vocabulary";
    case CostKind::kTree:
      return "tree";
    case CostKind::kCommit:
      return "commit";
    case CostKind::kCollective:
      return "all-reduce";
  }
  return "?";
}

double distinct_experts(std::int64_t num_experts, std::int64_t top_k, double rows, double overlap) {
  if (rows <= 0) return 0;
  const auto experts = static_cast<double>(num_experts), k = static_cast<double>(top_k);
  const double uniform = experts * (1 - std::pow(1 - k / experts, rows));
  return k + (uniform - k) * (1 - overlap);
}

}  // namespace coppice
