// What the sums over ranks share: counts of calls, waits that end, and words that travel with the
// number of their call, so that who sees the number has the word. One trip less than data and then
// a flag; twice the bytes.
#pragma once

#include <cuda_bf16.h>

#include "kernels/comm/peer_exchange.h"
#include "kernels/common/sync.cuh"

namespace coppice::kernels {

inline constexpr std::uint32_t kPollsPerLook = 4096;  // between looks at clock and host: about 2 ms

__device__ inline std::int64_t now_ns() {
  std::int64_t value;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
  return value;
}

// Asked every so often in a wait for a peer that began at `start`: whether to end it. After a wait
// in vain later ones end at once or soon, and what comes out means nothing: the host sees
// `missing`.
__device__ inline bool is_in_vain(const PeerGroup& group, int peer, std::int64_t start) {
  volatile std::uint32_t* broken = group.broken;
  if (*broken != 0) return true;
  const bool late = now_ns() - start > group.deadline_ns;
  if (!late && *group.give_up == 0) return false;
  *broken = 1;
  if (late) *group.missing = peer + 1;
  return true;
}

// The call after this one; none is 0, as untouched slots are.
__device__ inline std::uint32_t next(std::uint32_t call) {
  return call + 1 == 0 ? 2 : call + 1;
}

// Each block counts for itself: all its calls, and those of its meetings.
__device__ inline void end_calls(const PeerGroup& group, std::uint32_t last_call,
                                 std::uint32_t last_meeting) {
  __syncthreads();  // all threads have read the counts
  if (threadIdx.x != 0) return;
  group.calls[blockIdx.x] = last_call;
  group.meetings[blockIdx.x] = last_meeting;
}

// A pair of bf16 in a word.
__device__ inline void add(float2& sum, std::uint32_t word) {
  const float2 pair = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
  sum = {__fadd_rn(sum.x, pair.x), __fadd_rn(sum.y, pair.y)};
}

__device__ inline std::uint32_t pair_of(float2 values) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(values.x, values.y);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

__device__ inline std::uint64_t* tagged_slot_of(const PeerGroup& group, int owner,
                                                std::uint32_t call, int from) {
  std::byte* const slots = group.data[owner] + 2 * group.num_ranks * kPeerSlotBytes;
  const std::int64_t index = static_cast<std::int64_t>(call & 1) * group.num_ranks + from;
  return reinterpret_cast<std::uint64_t*>(slots + index * kTaggedSlotBytes);
}

__device__ inline void store_tagged(std::uint64_t* to, uint2 words, std::uint32_t tag) {
  const std::uint64_t high = static_cast<std::uint64_t>(tag) << 32;
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(high | words.x),
               "l"(high | words.y)
               : "memory");
}

// Shows the peers two words, number i of the call.
__device__ inline void show_tagged(const PeerGroup& group, std::uint32_t call, std::int64_t i,
                                   uint2 words) {
  for (int step = 1; step < group.num_ranks; ++step) {
    const int peer = (group.rank + step) % group.num_ranks;  // not all to the same one
    store_tagged(tagged_slot_of(group, peer, call, group.rank) + 2 * i, words, call);
  }
}

// Words number i of all ranks, as pairs of bf16 summed in rank order: this rank's are `own`, for
// the others' it waits. kMost: at least num_ranks; all are asked for at once.
template <int kMost>
__device__ inline uint2 sum_tagged(const PeerGroup& group, std::uint32_t call, std::int64_t i,
                                   uint2 own) {
  ulonglong2 words[kMost];
  const std::int64_t start = now_ns();
  int missing = 0;  // a peer
  for (std::uint32_t polls = 1; missing >= 0; ++polls) {
#pragma unroll
    for (int rank = 0; rank < kMost; ++rank)
      if (rank < group.num_ranks && rank != group.rank)
        words[rank] = load_tagged(tagged_slot_of(group, group.rank, call, rank) + 2 * i);
    missing = -1;
#pragma unroll
    for (int rank = 0; rank < kMost; ++rank)
      if (rank < group.num_ranks && rank != group.rank &&
          (words[rank].x >> 32 != call || words[rank].y >> 32 != call))
        missing = rank;
    if (missing >= 0 && polls % kPollsPerLook == 0 && is_in_vain(group, missing, start)) break;
  }
  float2 low = {-0.0f, -0.0f}, high = low;  // adding anything to it changes no bit
#pragma unroll
  for (int rank = 0; rank < kMost; ++rank) {
    if (rank >= group.num_ranks) continue;
    const bool is_own = rank == group.rank;
    add(low, is_own ? own.x : static_cast<std::uint32_t>(words[rank].x));
    add(high, is_own ? own.y : static_cast<std::uint32_t>(words[rank].y));
  }
  return {pair_of(low), pair_of(high)};
}

}  // namespace coppice::kernels
