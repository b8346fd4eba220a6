// A sum over ranks, the residual addition and the norm behind it in one kernel.
#pragma once

#include "kernels/comm/peer_exchange.h"
#include "kernels/norm/rms_norm.h"

namespace coppice::kernels {

// The widest row that the kernel has registers for.
inline constexpr std::int64_t kMostNormed = 16384;
// Whether one kernel takes so much: its words travel tagged.
constexpr bool peer_norm_fits(int num_ranks, std::int64_t num_rows, std::int64_t hidden_size) {
  return hidden_size % 8 == 0 && hidden_size <= kMostNormed &&
         choose_peer_sum(num_ranks, num_rows * hidden_size) == PeerSumForm::kTagged;
}

// peer_sum of params.delta, which keeps this rank's part, and then rms_norm, bit for bit.
cudaError_t peer_norm(const PeerGroup& group, const RmsNormParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
