#include "kernels/kv/gather_rows_config.h"

namespace coppice::kernels {

int choose_gather_bytes(uint64_t alignment_bits) {
  if (alignment_bits % 16 == 0) return 16;
  return alignment_bits % 4 == 0 ? 4 : 2;
}

}  // namespace coppice::kernels
