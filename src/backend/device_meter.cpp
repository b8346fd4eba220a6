#include "backend/device_meter.h"

#include <cmath>

namespace coppice {

float expert_scale(std::int64_t cols) {
  constexpr float kSpread = 4.3f;
  return 1.0f / (kSpread * std::sqrt(static_cast<float>(cols)));
}

}  // namespace coppice
