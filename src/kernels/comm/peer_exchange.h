// Collectives of tensor-parallel ranks over peer memory. One-shot: every rank writes its part into
// a slot of its own on every peer, raises a flag there, waits for the flags of all, and reads what
// came in rank order. Tagged, for small sums: the same, with the number of the call beside every
// word in place of flags. Two-shot, for large sums of many ranks: each rank sums one part of the
// whole, and then shows it to all. Bits are the same on every rank and for all forms, and do not
// depend on the number of rows.
//
// Slots alternate between two sets, so no rank needs to wait before it writes: whoever starts call
// k has all flags of call k - 1, so every rank has started that, so every rank is done with call
// k - 2 and its set. All ranks make the same calls in the same order. Calls may be captured in
// graphs: what changes from call to call is in device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/comm/peer_sum_form.h"

namespace coppice::kernels {

inline constexpr int kMaxPeers = 8;
inline constexpr int kPeerBlocks = 64;  // blocks of every call
inline constexpr std::int64_t kTaggedSlotBytes = 2 * kTaggedBytes;

// Bytes of one rank's memory that all its peers write to: slots [2][num_ranks][kPeerSlotBytes],
// then [2][num_ranks][kTaggedSlotBytes]. Zero at first.
constexpr std::size_t peer_data_bytes(int num_ranks) {
  return 2 * static_cast<std::size_t>(num_ranks) *
         static_cast<std::size_t>(kPeerSlotBytes + kTaggedSlotBytes);
}
inline constexpr std::size_t kPeerFlags = std::size_t{kPeerBlocks} * kMaxPeers;
inline constexpr std::size_t kPeerCounts = 2 * std::size_t{kPeerBlocks} + 1;  // and `broken`

// What one rank knows of the group. `data` and `flags` of rank r are its own memory or a peer's.
struct PeerGroup {
  std::byte* data[kMaxPeers];
  std::uint32_t* flags[kMaxPeers];  // [kPeerBlocks][kMaxPeers]: by the rank that raises them; zero
  std::uint32_t* calls;             // own, [kPeerBlocks]: by each block; zero at first
  std::uint32_t* meetings;          // the same: those calls in which it raised flags
  std::uint32_t* broken;            // own: not 0 once a peer was waited for in vain
  volatile std::int32_t* missing;   // own, page-locked: 1 + that peer; 0: none
  const volatile std::int32_t* give_up;  // own, page-locked: the host sets it when a rank failed
  std::int64_t deadline_ns;
  int rank;
  int num_ranks;
};

// x becomes the sum over ranks, in fp32 and in rank order, rounded once.
struct PeerSumParams {
  void* x;                    // bf16
  std::int64_t num_elements;  // a multiple of 8, at most peer_sum_max_elements
};
cudaError_t peer_sum(const PeerGroup& group, const PeerSumParams& params, cudaStream_t stream);
// Its forms: at most kPeerSlotBytes, kTaggedBytes, num_ranks * kPeerSlotBytes.
cudaError_t peer_sum_one_shot(const PeerGroup& group, const PeerSumParams& params,
                              cudaStream_t stream);
cudaError_t peer_sum_tagged(const PeerGroup& group, const PeerSumParams& params,
                            cudaStream_t stream);
cudaError_t peer_sum_two_shot(const PeerGroup& group, const PeerSumParams& params,
                              cudaStream_t stream);

constexpr std::int64_t peer_sum_max_elements(int num_ranks) {
  return kPeerSlotBytes / 2 * (num_ranks > 2 ? num_ranks : 1);
}

// out[t] = row t of every rank's x, in rank order.
struct PeerGatherParams {
  const float* x;  // [num_rows, columns], at most kPeerSlotBytes
  float* out;      // [num_rows, num_ranks * columns]
  std::int64_t num_rows;
  std::int64_t columns;  // a multiple of 4
};
cudaError_t peer_gather(const PeerGroup& group, const PeerGatherParams& params,
                        cudaStream_t stream);

}  // namespace coppice::kernels
