// Weights that have shapes and formats but no values, for a backend that only counts.
#pragma once

#include <string>

#include "model/weight_source.h"

namespace coppice {

class ShapeSource : public WeightSource {
 public:
  // Routed experts are stored as `experts`, every other matrix as bf16.
  explicit ShapeSource(WeightFormat experts) : experts_(experts) {}

  std::size_t check(const WeightSpec& spec) override;
  void check_unused() override {}
  bool has(const std::string&) const override { return true; }
  // Without data: only functions of host_matrix.h, and a backend that does not read, may take it.
  HostMatrix matrix(const WeightSpec& spec) override;
  std::vector<float> vector(const WeightSpec& spec) override;
  void release() override {}

 private:
  WeightFormat experts_;
};

}  // namespace coppice
