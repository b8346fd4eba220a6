// From tensors to the pointers and ints of kernel params.
#pragma once

#include <cstdint>
#include <limits>

#include "backend/op_args.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/sample/sample_rows.h"
#include "kernels/tree/accept_path.h"
#include "kernels/tree/tree_arrays.h"

namespace coppice {

inline int to_int(std::int64_t value) {
  COPPICE_CHECK(value >= 0 && value <= std::numeric_limits<int>::max(), value);
  return static_cast<int>(value);
}

// Null for an empty tensor.
inline std::int32_t* int32s(const Tensor& tensor) {
  return tensor.empty() ? nullptr : tensor.data<std::int32_t>();
}
inline float* floats(const Tensor& tensor) {
  return tensor.empty() ? nullptr : tensor.data<float>();
}

kernels::TreeArrays tree_arrays(const TreeBuffers& trees);
// Without the workspace.
kernels::SampleRowsParams sample_params(const SampleRowsArgs& args);
kernels::AcceptPathParams accept_params(const AcceptPathArgs& args);
kernels::RmsNormParams norm_params(const AddRmsNormArgs& args);

}  // namespace coppice
