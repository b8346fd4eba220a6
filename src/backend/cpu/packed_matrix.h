// Weights of the fast paths: rows interleaved by 16 and quantised formats kept at their size, in
// the layouts of simd/kernels.h.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/simd/kernels.h"
#include "backend/op_args.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace coppice::cpu {

struct OwnedMatrix {
  simd::PackedMatrix view;
  Buffer storage;
};

struct PackedExpert {
  OwnedMatrix gate;  // [intermediate, hidden]
  OwnedMatrix up;    // [intermediate, hidden]
  OwnedMatrix down;  // [hidden, intermediate]
};

// The parts stacked along rows. Parts of different formats, and formats without a layout of their
// own (F8), become f32.
OwnedMatrix pack(std::span<const HostMatrix> parts, ThreadPool& pool);

}  // namespace coppice::cpu
