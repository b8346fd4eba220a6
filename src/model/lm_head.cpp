#include "model/lm_head.h"

#include <algorithm>

namespace coppice {

LmHead::LmHead(Backend& backend, LinearWeight weight, const ModelOptions& options)
    : backend_(backend), weight_(std::move(weight)) {
  if (options.parallel.size == 1) return;
  const std::int64_t width = weight_.out_features;
  part_buffer_ = backend.allocate(static_cast<std::size_t>(options.max_rows * width) * 4);
  part_ = part_buffer_.tensor(DType::kF32, {options.max_rows, width});
}

// One path for all rows: the head's work per row does not depend on where the row came from.
void LmHead::compute(const Tensor& hidden, const Tensor& logits) {
  const auto product = [&](const Tensor& x, const Tensor& out) {
    backend_.linear({.x = x, .weight = &weight_, .out = out, .provenance = Provenance::kDecided});
  };
  if (part_.empty()) return product(hidden, logits);
  // A draft pass may have more rows than any step of the target.
  const std::int64_t rows = hidden.shape(0), most = part_.shape(0);
  for (std::int64_t begin = 0; begin < rows; begin += most) {
    const std::int64_t count = std::min(most, rows - begin);
    const Tensor out = part_.rows(0, count);
    product(hidden.rows(begin, count), out);
    backend_.all_gather({.x = out, .out = logits.rows(begin, count)});
  }
}

}  // namespace coppice
