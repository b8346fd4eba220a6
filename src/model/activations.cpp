#include "model/activations.h"

#include <vector>

namespace coppice {

Arena allocate_activations(Backend& backend, std::int64_t max_rows,
                           std::initializer_list<Activation> activations) {
  std::size_t total = 0;
  for (const Activation& activation : activations)
    total += Arena::padded(static_cast<std::size_t>(max_rows * activation.columns) *
                           size_of(activation.dtype));
  Arena arena(backend.allocate(total));
  for (const Activation& activation : activations)
    *activation.tensor = arena.allocate(activation.dtype, {max_rows, activation.columns});
  return arena;
}

RopeTable::RopeTable(Backend& backend, const RopeConfig& rope, std::int64_t dim,
                     std::int64_t num_positions) {
  const std::vector<float> values = rope_table(rope, dim, num_positions);
  buffer = backend.allocate(values.size() * sizeof(float));
  cos_sin = buffer.tensor(DType::kF32, {num_positions, dim});
  backend.upload(cos_sin, values.data());
}

}  // namespace coppice
