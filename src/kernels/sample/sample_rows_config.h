// Instance and shared memory of sample_rows. No device code.
#pragma once

#include <cstddef>

namespace coppice::kernels {

struct SampleRowsConfig {
  int blocks_per_row = 0;  // 1, or 8: a cluster, when there are few rows (the same bits)
  int threads = 0;         // of a block
  size_t marks_bytes = 0;  // bit set over the vocabulary: ids with a bias, a ban or a path count
};

SampleRowsConfig choose_sample_rows(int num_rows, int vocab_size);

}  // namespace coppice::kernels
