// Width of one access of gather_rows. No device code.
#pragma once

#include <cstdint>

namespace coppice::kernels {

// 16, 4 or 2: the widest that divides every address and length (their bitwise or).
int choose_gather_bytes(uint64_t alignment_bits);

}  // namespace coppice::kernels
