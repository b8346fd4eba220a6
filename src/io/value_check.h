// Floating-point values of a stored tensor that cannot be right.
#pragma once

#include "io/checkpoint.h"

namespace coppice {

// Reads a BF16, F16, F32 or F8_E4M3 tensor, a Q4_0/Q4_1/Q8_0 tensor's block scales, and throws
// Error "FILE: tensor 'x': element [i, j] is nan" for the first NaN or infinity. Tensors that are
// INT4 scales by name (".weight_scale") must also be non-negative and not zero over a whole row.
// Other types pass. Drops the pages it has read.
void check_values(const Checkpoint& checkpoint, const TensorInfo& info);

}  // namespace coppice
