#include "kernels/kv/move_kv_config.h"

#include <algorithm>

namespace coppice::kernels {

MoveKvConfig choose_move_kv(int row_bytes, int num_pairs) {
  constexpr int kStaged = 96 * 1024 / 16;  // two blocks on an SM
  constexpr int kMaxColumns = 18;          // four blocks for an MLA row of 1152 bytes
  MoveKvConfig config;
  const int row_columns = row_bytes / 16;
  config.threads = num_pairs <= 16 ? 256 : 512;
  config.columns = std::min(kMaxColumns, row_columns);
  config.blocks_per_plane = (row_columns + config.columns - 1) / config.columns;
  config.staged = std::max(num_pairs, std::min(num_pairs * config.columns, kStaged));
  config.shared_bytes =
      static_cast<size_t>(config.staged) * 16 + static_cast<size_t>(num_pairs) * 8;
  return config;
}

}  // namespace coppice::kernels
