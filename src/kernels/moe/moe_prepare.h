// What routed experts need from elsewhere, in one launch: the choice of experts (moe_route.h) and
// the end of the shared expert, out = down(silu(gate) * up).
//
// The same bits as moe_route, silu_mul and skinny_gemm one after the other, where skinny_gemm takes
// all inputs of `down` as one segment.
#pragma once

#include <cuda_runtime.h>

#include "kernels/moe/moe_route.h"

namespace coppice::kernels {

struct MoeSharedParams {
  const void* gate_up = nullptr;  // bf16 [num_tokens, 2 * intermediate_size]: gates, then ups
  const void* down = nullptr;     // bf16 [hidden_size, intermediate_size], 16-byte aligned
  void* out = nullptr;            // bf16 [num_tokens, hidden_size]
  int hidden_size = 0;            // a multiple of 32
  int intermediate_size = 0;      // a multiple of 64, at most kMoeSharedMaxSize
};

inline constexpr int kMoeSharedMaxSize = 512;

// Whether this launch is both possible and faster than its steps. Hopper alone: the steps are
// skinny_gemm's there.
bool moe_prepare_pays(int num_tokens, int hidden_size, int intermediate_size);

// Enqueues on `stream`; capturable. Both have route.num_tokens rows. Returns cudaErrorInvalidValue
// for shapes outside the limits.
cudaError_t moe_prepare(const MoeRouteParams& route, const MoeSharedParams& shared,
                        cudaStream_t stream);

}  // namespace coppice::kernels
