// Rows of a stored weight as fp32, for conversions between checkpoint formats.
#pragma once

#include <cstdint>
#include <span>

#include "io/checkpoint.h"

namespace coppice {

// A two-dimensional F32, F16, BF16 or block-FP8 weight. Refers to the checkpoint. Thread-safe.
class WeightRows {
 public:
  // Finds and checks "X.weight_scale_inv" of an F8_E4M3 "X.weight" (blocks of 128x128). Throws
  // kBadFile or kUnsupported naming the tensor.
  WeightRows(const Checkpoint& checkpoint, const TensorInfo& info);

  std::int64_t num_rows() const { return values_.shape(0); }
  std::int64_t num_cols() const { return values_.shape(1); }
  // out [num_cols]: stored value times scale, rounded once to fp32.
  void read(std::int64_t row, std::span<float> out) const;

 private:
  Tensor values_;     // [rows, cols]
  Tensor scale_inv_;  // f32 [ceil(rows / 128), ceil(cols / 128)]; FP8 only
};

}  // namespace coppice
