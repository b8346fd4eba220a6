// Activations of one network at fixed addresses: one buffer, sized for the largest step when the
// network is made. A step of fewer rows uses the first rows of each.
#pragma once

#include <initializer_list>

#include "backend/backend.h"
#include "model/model_config.h"
#include "tensor/arena.h"

namespace coppice {

struct Activation {
  Tensor* tensor;  // becomes [max_rows, columns]
  DType dtype;
  std::int64_t columns;
};

// The arena that owns them.
Arena allocate_activations(Backend& backend, std::int64_t max_rows,
                           std::initializer_list<Activation> activations);

// Owns a rope table on the device: [num_positions, dim] f32.
struct RopeTable {
  RopeTable(Backend& backend, const RopeConfig& rope, std::int64_t dim, std::int64_t num_positions);
  Buffer buffer;
  Tensor cos_sin;
};

}  // namespace coppice
