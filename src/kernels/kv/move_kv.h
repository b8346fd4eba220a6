// Copies cache rows src[i] -> dst[i] in every plane at once. All sources are read before any
// destination is written, so sources may be destinations of other pairs. Destinations are distinct.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

inline constexpr int kMoveKvMaxPlanes = 192;
inline constexpr int kMoveKvMaxPairs = 4096;

struct MoveKvParams {
  void* planes[kMoveKvMaxPlanes] = {};  // each [num_slots, row_bytes], 16-byte aligned
  int num_planes = 0;
  int row_bytes = 0;             // a multiple of 16
  const int32_t* src = nullptr;  // [num_pairs] slots; -1: nothing to do
  const int32_t* dst = nullptr;  // [num_pairs]
  int num_pairs = 0;             // 0 to kMoveKvMaxPairs
};

// Enqueues on `stream`; capturable (the plane addresses are captured by value). Returns
// cudaErrorInvalidValue outside the limits above.
cudaError_t move_kv(const MoveKvParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
