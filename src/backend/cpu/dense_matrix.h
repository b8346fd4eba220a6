// Weights of the reference path: fp32, row-major, as plain as can be.
#pragma once

#include <memory>
#include <span>

#include "backend/op_args.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace coppice::cpu {

struct DenseMatrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Buffer storage;  // [rows, cols] f32

  const float* row(std::int64_t i) const {
    return static_cast<const float*>(storage.data()) + i * cols;
  }
};

struct DenseExpert {
  DenseMatrix gate_up;  // [2 * intermediate, hidden]: gate rows, then up rows
  DenseMatrix down;     // [hidden, intermediate]
};

// The parts stacked along rows, dequantised exactly.
DenseMatrix load_dense(std::span<const HostMatrix> parts, ThreadPool& pool);

}  // namespace coppice::cpu
