// Weights of the fast paths: rows interleaved by 16 and quantised formats kept at their size, in
// the layouts of simd/kernels.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/simd/kernels.h"
#include "backend/op_args.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace coppice::cpu {

// Weights side by side in large pieces of memory: small matrices of their own would miss the huge
// pages that streaming needs.
class WeightMemory {
 public:
  // Zero-filled and 64-byte aligned; keeps its piece alive.
  std::shared_ptr<std::uint8_t> allocate(std::size_t num_bytes);

 private:
  std::shared_ptr<Buffer> piece_;
  std::size_t used_ = 0;
};

struct OwnedMatrix {
  simd::PackedMatrix view;
  std::shared_ptr<std::uint8_t> storage;
};

struct PackedExpert {
  OwnedMatrix gate;  // [intermediate, hidden]
  OwnedMatrix up;    // [intermediate, hidden]
  OwnedMatrix down;  // [hidden, intermediate]
};

// The parts stacked along rows. Parts of different formats, and formats without a layout of their
// own (F8), become f32.
OwnedMatrix pack(std::span<const HostMatrix> parts, WeightMemory& memory, ThreadPool& pool);

}  // namespace coppice::cpu
