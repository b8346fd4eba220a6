#include "kernels/sample/sample_rows_config.h"

namespace coppice::kernels {

SampleRowsConfig choose_sample_rows(int num_rows, int vocab_size) {
  constexpr int kClusterRows = 64;
  SampleRowsConfig config;
  config.blocks_per_row = num_rows <= kClusterRows ? 8 : 1;
  config.threads = config.blocks_per_row == 1 ? 1024 : 512;
  config.marks_bytes = (static_cast<size_t>(vocab_size) + 127) / 128 * 16;
  return config;
}

}  // namespace coppice::kernels
