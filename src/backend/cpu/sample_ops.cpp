#include "backend/cpu/ops.h"

namespace coppice::cpu {

void sample_rows(const SampleRowsArgs&, ThreadPool&) {
  COPPICE_CHECK(false);
}

}  // namespace coppice::cpu
