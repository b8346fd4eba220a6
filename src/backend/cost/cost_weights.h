// What the counting backend keeps of weights. Internal to backend/cost.
#pragma once

#include "backend/op_args.h"

namespace coppice {

inline constexpr std::int64_t kDenseWeightBytes = 2;  // dense matrices are bf16 on the device

struct CostMatrix {
  double bytes = 0;
};

struct CostExperts {
  double bytes_per_expert = 0;  // of this rank's part, scales included
  bool is_int4 = false;
};

// Stored bytes of one weight, scales included.
constexpr double bytes_per_weight(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 4;
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return 2;
    case WeightFormat::kF8Block128:
      return 1 + 4.0 / (128 * 128);
    case WeightFormat::kInt4Group32:
      return 0.5 + 2.0 / 32;
    case WeightFormat::kQ4_0:
      return 18.0 / 32;
    case WeightFormat::kQ4_1:
      return 20.0 / 32;
    case WeightFormat::kQ8_0:
      return 34.0 / 32;
  }
  return 0;
}

}  // namespace coppice
