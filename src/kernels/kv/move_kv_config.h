// Column split of move_kv. No device code.
#pragma once

#include <cstddef>

namespace coppice::kernels {

struct MoveKvConfig {
  int threads = 0;  // 256 or 512
  int columns = 0;  // 16-byte columns of a row handled by one block
  int blocks_per_plane = 0;
  int staged = 0;           // 16-byte pieces in shared memory: one column of all pairs at least
  size_t shared_bytes = 0;  // those and the pair list
};

MoveKvConfig choose_move_kv(int row_bytes, int num_pairs);

}  // namespace coppice::kernels
