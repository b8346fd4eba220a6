// Where the tensors of a network come from: a checkpoint, or a seeded generator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/op_args.h"

namespace coppice {

// One tensor that a network needs, under its published name without the prefix of the wrapper.
struct WeightSpec {
  std::string name;       // matrices: without ".weight"
  std::int64_t rows = 0;  // vectors: the length
  std::int64_t cols = 0;  // 0: a vector
};

// Not thread-safe. Errors are one line naming the file and the tensor.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Checks that the tensor is there with a type and shape that can be used, by its header alone.
  // Returns its bytes, scales included.
  virtual std::size_t check(const WeightSpec& spec) = 0;
  // To be called after the last check: complains of tensors nobody asked for.
  virtual void check_unused() = 0;
  virtual bool has(const std::string& name) const = 0;

  // A matrix in its stored format. The view is valid until release().
  virtual HostMatrix matrix(const WeightSpec& spec) = 0;
  // The values of a vector, widened to fp32.
  virtual std::vector<float> vector(const WeightSpec& spec) = 0;

  // The experts of the layer under `prefix` ("model.layers.3.mlp.experts.") as this rank's backend
  // takes them; nothing where the source has the published matrices.
  virtual std::optional<RepackedExperts> repacked_experts(const std::string& /*prefix*/) {
    return std::nullopt;
  }

  // The matrices handed out so far are no longer used.
  virtual void release() = 0;
};

}  // namespace coppice
