#include "kernels/comm/peer_exchange.h"

#include "kernels/comm/peer_tagged.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/launch.h"

namespace coppice::kernels {
namespace {

constexpr int kThreads = 512;
__device__ void raise_flag(std::uint32_t* flag, std::uint32_t call) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(call) : "memory");
}

__device__ std::uint32_t read_flag(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// A flag may be one meeting ahead.
__device__ void wait_for_peer(const PeerGroup& group, int peer, std::uint32_t meeting) {
  const std::uint32_t* flag = group.flags[group.rank] + blockIdx.x * kMaxPeers + peer;
  const std::int64_t start = now_ns();
  for (std::uint32_t polls = 1; static_cast<std::int32_t>(read_flag(flag) - meeting) < 0; ++polls)
    if (polls % kPollsPerLook == 0 && is_in_vain(group, peer, start)) return;
}

constexpr std::int64_t kSlotVectors = kPeerSlotBytes / static_cast<std::int64_t>(sizeof(uint4));

// What rank `from` shows to rank `owner` in a call.
__device__ uint4* slot_of(const PeerGroup& group, int owner, std::uint32_t call, int from) {
  const std::int64_t index = static_cast<std::int64_t>(call & 1) * group.num_ranks + from;
  return reinterpret_cast<uint4*>(group.data[owner]) + index * kSlotVectors;
}

// After the block's meeting of that number what its threads wrote to peers is there, and what the
// same block of every peer wrote is here. Counted apart from calls, so that flags of blocks that
// rarely have a part are never far behind.
__device__ void meet(const PeerGroup& group, std::uint32_t meeting) {
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < group.num_ranks && peer != group.rank) {
    raise_flag(group.flags[peer] + blockIdx.x * kMaxPeers + group.rank, meeting);
    const volatile std::uint32_t* broken = group.broken;
    if (*broken == 0) wait_for_peer(group, peer, meeting);
  }
  __syncthreads();
}

// This block's part of `count` vectors: the same on all ranks. Blocks without one do not meet.
struct Range {
  std::int64_t begin, end;
};
__device__ Range part_of(std::int64_t count) {
  const std::int64_t block = blockIdx.x, threads = blockDim.x;
  const std::int64_t blocks = min((count + threads - 1) / threads, std::int64_t{kPeerBlocks});
  if (block >= blocks) return {0, 0};
  return {count * block / blocks, count * (block + 1) / blocks};
}

// Shows this rank's vectors to all peers and returns once theirs have come: then finish(i, call)
// runs for each.
template <typename Finish>
__device__ void exchange(const PeerGroup& group, const uint4* mine, std::int64_t count,
                         const Finish& finish) {
  const std::uint32_t call = next(group.calls[blockIdx.x]);
  std::uint32_t meeting = group.meetings[blockIdx.x];
  const Range range = part_of(count);
  if (range.begin < range.end) {
    for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += kThreads) {
      const uint4 vector = mine[i];
      for (int step = 1; step < group.num_ranks; ++step) {
        const int peer = (group.rank + step) % group.num_ranks;  // not all to the same one
        slot_of(group, peer, call, group.rank)[i] = vector;
      }
    }
    meet(group, ++meeting);
    for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += kThreads) finish(i, call);
  }
  end_calls(group, call, meeting);
}

// Vector number i of all ranks, summed in rank order: this rank's is `own`, the others lie in
// slots.
__device__ uint4 sum_over_ranks(const PeerGroup& group, std::uint32_t call, const uint4& own,
                                std::int64_t i) {
  float2 sum[4];
#pragma unroll
  for (float2& pair : sum) pair = {-0.0f, -0.0f};  // adding anything to it changes no bit
  for (int rank = 0; rank < group.num_ranks; ++rank) {
    const uint4 part =
        rank == group.rank ? own : __ldcg(slot_of(group, group.rank, call, rank) + i);
    add(sum[0], part.x);
    add(sum[1], part.y);
    add(sum[2], part.z);
    add(sum[3], part.w);
  }
  return {pair_of(sum[0]), pair_of(sum[1]), pair_of(sum[2]), pair_of(sum[3])};
}

__global__ void __launch_bounds__(kThreads)
    one_shot_kernel(const __grid_constant__ PeerGroup group, PeerSumParams params) {
  grid_dependency_launch();
  grid_dependency_wait();
  auto* x = static_cast<uint4*>(params.x);
  exchange(group, x, params.num_elements / 8, [&](std::int64_t i, std::uint32_t call) {
    x[i] = sum_over_ranks(group, call, x[i], i);
  });
}

// Rank r sums the r-th of num_ranks equal parts; the sums go to all. Two calls in one kernel: a
// slot of the second is free when the first has met, as between kernels.
__global__ void __launch_bounds__(kThreads)
    two_shot_kernel(const __grid_constant__ PeerGroup group, PeerSumParams params) {
  grid_dependency_launch();
  grid_dependency_wait();
  auto* x = static_cast<uint4*>(params.x);
  const std::int64_t count = params.num_elements / 8;
  const std::int64_t part = (count + group.num_ranks - 1) / group.num_ranks;  // the last: shorter
  const std::uint32_t call = next(group.calls[blockIdx.x]), second = next(call);
  std::uint32_t meeting = group.meetings[blockIdx.x];
  const Range range = part_of(part);
  // body(rank, i, vector's place in x), for all ranks but this one, from the next one on.
  const auto for_peers = [&](const auto& body) {
    for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += kThreads)
      for (int step = 1; step < group.num_ranks; ++step) {
        const int peer = (group.rank + step) % group.num_ranks;
        const std::int64_t place = peer * part + i;
        if (place < count) body(peer, i, place);
      }
  };
  if (range.begin < range.end) {
    for_peers([&](int peer, std::int64_t i, std::int64_t place) {
      slot_of(group, peer, call, group.rank)[i] = x[place];
    });
    meet(group, ++meeting);
    for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += kThreads) {
      const std::int64_t place = group.rank * part + i;
      if (place >= count) break;
      const uint4 sum = sum_over_ranks(group, call, x[place], i);
      x[place] = sum;
      for (int step = 1; step < group.num_ranks; ++step) {
        const int peer = (group.rank + step) % group.num_ranks;
        slot_of(group, peer, second, group.rank)[i] = sum;
      }
    }
    meet(group, ++meeting);
    for_peers([&](int peer, std::int64_t i, std::int64_t place) {
      x[place] = __ldcg(slot_of(group, group.rank, second, peer) + i);
    });
  }
  end_calls(group, second, meeting);
}

constexpr int kTaggedThreads = 256;

template <int kMost>
__global__ void __launch_bounds__(kTaggedThreads)
    tagged_kernel(const __grid_constant__ PeerGroup group, PeerSumParams params) {
  grid_dependency_launch();
  grid_dependency_wait();
  auto* x = static_cast<uint2*>(params.x);
  const std::uint32_t call = next(group.calls[blockIdx.x]);
  const std::uint32_t meetings = group.meetings[blockIdx.x];  // none more
  const Range range = part_of(params.num_elements / 4);
  for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += kTaggedThreads)
    show_tagged(group, call, i, x[i]);
  for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += kTaggedThreads)
    x[i] = sum_tagged<kMost>(group, call, i, x[i]);
  end_calls(group, call, meetings);
}

__global__ void __launch_bounds__(kThreads)
    peer_gather_kernel(const __grid_constant__ PeerGroup group, PeerGatherParams params) {
  grid_dependency_launch();
  grid_dependency_wait();
  const auto* x = reinterpret_cast<const uint4*>(params.x);
  auto* out = reinterpret_cast<uint4*>(params.out);
  const std::int64_t width = params.columns / 4;
  exchange(group, x, params.num_rows * width, [&](std::int64_t i, std::uint32_t call) {
    const std::int64_t row = i / width, column = i % width;
    for (int rank = 0; rank < group.num_ranks; ++rank)
      out[(row * group.num_ranks + rank) * width + column] =
          rank == group.rank ? x[i] : __ldcg(slot_of(group, group.rank, call, rank) + i);
  });
}

}  // namespace

cudaError_t peer_sum_one_shot(const PeerGroup& group, const PeerSumParams& params,
                              cudaStream_t stream) {
  if (params.num_elements == 0) return cudaSuccess;
  return launch_dependent(one_shot_kernel, dim3(kPeerBlocks), kThreads, 0, stream, group, params);
}

cudaError_t peer_sum_two_shot(const PeerGroup& group, const PeerSumParams& params,
                              cudaStream_t stream) {
  if (params.num_elements == 0) return cudaSuccess;
  return launch_dependent(two_shot_kernel, dim3(kPeerBlocks), kThreads, 0, stream, group, params);
}

cudaError_t peer_sum_tagged(const PeerGroup& group, const PeerSumParams& params,
                            cudaStream_t stream) {
  if (params.num_elements == 0) return cudaSuccess;
  const auto kernel = group.num_ranks <= 2   ? tagged_kernel<2>
                      : group.num_ranks <= 4 ? tagged_kernel<4>
                                             : tagged_kernel<kMaxPeers>;
  return launch_dependent(kernel, dim3(kPeerBlocks), kTaggedThreads, 0, stream, group, params);
}

cudaError_t peer_sum(const PeerGroup& group, const PeerSumParams& params, cudaStream_t stream) {
  switch (choose_peer_sum(group.num_ranks, params.num_elements)) {
    case PeerSumForm::kTagged:
      return peer_sum_tagged(group, params, stream);
    case PeerSumForm::kOneShot:
      return peer_sum_one_shot(group, params, stream);
    case PeerSumForm::kTwoShot:
      return peer_sum_two_shot(group, params, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t peer_gather(const PeerGroup& group, const PeerGatherParams& params,
                        cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  return launch_dependent(peer_gather_kernel, dim3(kPeerBlocks), kThreads, 0, stream, group,
                          params);
}

}  // namespace coppice::kernels
