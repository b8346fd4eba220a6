// Host choices of the norm kernels.
#pragma once

namespace coppice::kernels {

// Threads of a block that reduces one row, from its size alone: one 16-byte vector each, up to
// 1024 threads.
int rms_norm_threads(int hidden_size);

}  // namespace coppice::kernels
