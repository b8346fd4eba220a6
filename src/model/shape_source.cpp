#include "model/shape_source.h"

#include "model/host_matrix.h"

namespace coppice {

HostMatrix ShapeSource::matrix(const WeightSpec& spec) {
  const bool is_expert = spec.name.find(".experts.") != std::string::npos;
  return {
      .format = is_expert ? experts_ : WeightFormat::kBF16, .rows = spec.rows, .cols = spec.cols};
}

std::size_t ShapeSource::check(const WeightSpec& spec) {
  if (spec.cols == 0) return static_cast<std::size_t>(spec.rows) * sizeof(float);
  return num_bytes(matrix(spec));
}

std::vector<float> ShapeSource::vector(const WeightSpec& spec) {
  return std::vector<float>(static_cast<std::size_t>(spec.rows));
}

}  // namespace coppice
