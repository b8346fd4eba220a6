#include "kernels/norm/rms_norm_config.h"

#include <algorithm>

namespace coppice::kernels {

int rms_norm_threads(int hidden_size) {
  return std::clamp((hidden_size / 8 + 31) / 32 * 32, 32, 1024);
}

}  // namespace coppice::kernels
