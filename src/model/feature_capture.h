// Copies residual streams of chosen layers side by side, for a drafter that reads them.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "tensor/buffer.h"

namespace coppice {

class FeatureCapture {
 public:
  FeatureCapture(Backend& backend, std::int64_t num_layers, std::int64_t max_rows);

  // 0-based, ascending and unique.
  void set_layers(std::span<const std::int64_t> layers);
  // residual [T, hidden_size]: the output of `layer`, before the next norm. features [T or more,
  // number of layers * hidden_size], or empty. Does nothing for layers that are not wanted.
  void capture(std::int64_t layer, const Tensor& residual, const Tensor& features) const;

 private:
  Backend& backend_;
  std::int64_t num_layers_;
  std::vector<std::int64_t> layers_;
  Buffer indices_buffer_;
  Tensor row_indices_;  // [max_rows] i32: 0, 1, 2, ...
};

}  // namespace coppice
