#include "model/feature_capture.h"

#include <algorithm>
#include <numeric>

namespace coppice {

FeatureCapture::FeatureCapture(Backend& backend, std::int64_t num_layers, std::int64_t max_rows)
    : backend_(backend), num_layers_(num_layers) {
  std::vector<std::int32_t> indices(static_cast<std::size_t>(max_rows));
  std::iota(indices.begin(), indices.end(), 0);
  indices_buffer_ = backend.allocate(indices.size() * sizeof(std::int32_t));
  row_indices_ = indices_buffer_.tensor(DType::kI32, {max_rows});
  backend.upload(row_indices_, indices.data());
}

void FeatureCapture::set_layers(std::span<const std::int64_t> layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    COPPICE_CHECK(layers[i] >= 0 && layers[i] < num_layers_, layers[i], " of ", num_layers_);
    COPPICE_CHECK(i == 0 || layers[i] > layers[i - 1], "not ascending");
  }
  layers_.assign(layers.begin(), layers.end());
}

void FeatureCapture::capture(std::int64_t layer, const Tensor& residual,
                             const Tensor& features) const {
  const auto found = std::ranges::find(layers_, layer);
  if (features.empty() || found == layers_.end()) return;
  const std::int64_t num_rows = residual.shape(0), hidden_size = residual.shape(1);
  const std::int64_t column = (found - layers_.begin()) * hidden_size;
  backend_.gather_rows({.src = residual,
                        .rows = row_indices_.rows(0, num_rows),
                        .out = features.rows(0, num_rows).columns(column, hidden_size)});
}

}  // namespace coppice
