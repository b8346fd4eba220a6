// Weights from a seed: the same values for the same tensor name on every machine, whatever is asked
// before it.
#pragma once

#include <cstdint>
#include <string>

#include "model/host_matrix.h"
#include "model/weight_source.h"

namespace coppice {

// Matrices keep the size of activations: uniform with variance 1 / cols. Routed experts are INT4
// with values in [-7, 7]; everything else is BF16.
class RandomSource : public WeightSource {
 public:
  explicit RandomSource(std::uint64_t seed) : seed_(seed) {}

  std::size_t check(const WeightSpec& spec) override;
  void check_unused() override {}
  bool has(const std::string&) const override { return true; }
  HostMatrix matrix(const WeightSpec& spec) override;
  std::vector<float> vector(const WeightSpec& spec) override;
  void release() override { storage_.clear(); }

 private:
  HostMatrix bf16_matrix(const WeightSpec& spec);
  HostMatrix int4_matrix(const WeightSpec& spec);

  std::uint64_t seed_;
  HostStorage storage_;
};

}  // namespace coppice
