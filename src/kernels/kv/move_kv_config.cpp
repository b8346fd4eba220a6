#include "kernels/kv/move_kv_config.h"

#include <algorithm>

namespace coppice::kernels {

MoveKvConfig choose_move_kv(int row_bytes, int num_pairs) {
  constexpr int kStagedBytes = 48 * 1024;
  constexpr int kMaxColumns = 18;  // four blocks for an MLA row of 1152 bytes
  MoveKvConfig config;
  const int row_columns = row_bytes / 16;
  int columns = std::clamp(kStagedBytes / (std::max(num_pairs, 1) * 16), 1, kMaxColumns);
  if (columns > 2) columns &= ~1;  // whole 32-byte sectors
  config.columns = std::min(columns, row_columns);
  config.blocks_per_plane = (row_columns + config.columns - 1) / config.columns;
  config.shared_bytes =
      static_cast<size_t>(num_pairs) * (static_cast<size_t>(config.columns) * 16 + 8);
  return config;
}

}  // namespace coppice::kernels
