// Shared memory of sample_rows. No device code.
#pragma once

#include <cstddef>

namespace coppice::kernels {

// Bytes of the bit set over the vocabulary that marks ids with a bias, a ban or a path count.
size_t sample_rows_marks_bytes(int vocab_size);

}  // namespace coppice::kernels
