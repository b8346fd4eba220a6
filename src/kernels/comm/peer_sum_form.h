// Which form of a sum over ranks is used for how many bytes: host arithmetic, shared with the
// planner. The forms: peer_exchange.h.
#pragma once

#include <cstdint>

namespace coppice::kernels {

inline constexpr std::int64_t kPeerSlotBytes = std::int64_t{4} << 20;  // largest part of one call
inline constexpr std::int64_t kTaggedBytes = std::int64_t{256} << 10;  // the same, tagged

enum class PeerSumForm { kTagged, kOneShot, kTwoShot };
// By the bytes that a rank sends in one shot. Two ranks send as many in two.
constexpr PeerSumForm choose_peer_sum(int num_ranks, std::int64_t num_elements) {
  constexpr std::int64_t kMostTagged = std::int64_t{512} << 10,
                         kMostOneShot = std::int64_t{2} << 20;
  const std::int64_t bytes = 2 * num_elements, sent = bytes * (num_ranks - 1);
  if (bytes <= kTaggedBytes && sent <= kMostTagged) return PeerSumForm::kTagged;
  return num_ranks <= 2 || (sent <= kMostOneShot && bytes <= kPeerSlotBytes)
             ? PeerSumForm::kOneShot
             : PeerSumForm::kTwoShot;
}

}  // namespace coppice::kernels
