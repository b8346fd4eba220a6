// Work list of one moe_experts call, built by every block for itself in shared memory: the
// (token, slot) pairs sorted by expert, ties in pair order, cut into units of one expert each.
#pragma once

#include "kernels/common/bulk_copy.cuh"

namespace coppice::kernels {

inline constexpr int kListWarps = 8;

// Rows [begin, begin + count) of the sorted pairs, all routed to `expert`.
struct MoeUnit {
  uint16_t expert;
  uint16_t begin;
  uint16_t count;
  uint16_t unused;
};

struct MoeWorkList {
  MoeUnit* units;       // [max_units]
  uint16_t* pairs;      // [num_pairs], token * top_k + slot
  uint16_t* experts;    // [num_pairs] scratch, of the pairs in their own order
  uint16_t* histogram;  // [kListWarps, num_experts] scratch
  uint64_t* scan;       // [kListWarps + 1] scratch; last: totals
};

// Totals packed into one word so that a single scan serves all three.
struct MoeTotals {
  int pairs, units, active;
};
__device__ inline uint64_t pack_totals(int pairs, int units, int active) {
  return static_cast<uint64_t>(pairs) | static_cast<uint64_t>(units) << 20 |
         static_cast<uint64_t>(active) << 40;
}
__device__ inline MoeTotals unpack_totals(uint64_t packed) {
  return {static_cast<int>(packed & 0xFFFFF), static_cast<int>(packed >> 20 & 0xFFFFF),
          static_cast<int>(packed >> 40)};
}

// Expert of a pair, -1 if it has none.
__device__ inline int pair_expert(const int32_t* topk_ids, int pair, int end, int num_experts) {
  const int expert = pair < end ? topk_ids[pair] : -1;
  return expert >= 0 && expert < num_experts ? expert : -1;
}

__device__ inline int listed_expert(const MoeWorkList& list, int pair, int end) {
  const int expert = pair < end ? list.experts[pair] : 0xFFFF;
  return expert == 0xFFFF ? -1 : expert;
}

// Exclusive scan over the first kListWarps warps; all threads of the block call it.
__device__ inline uint64_t scan_totals(uint64_t mine, uint64_t* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint64_t inclusive = mine;
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, inclusive, distance);
    if (lane >= distance) inclusive += other;
  }
  if (lane == 31 && warp < kListWarps) scratch[warp] = inclusive;
  __syncthreads();
  uint64_t before = 0, total = 0;
  for (int w = 0; w < kListWarps; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  if (threadIdx.x == 0) scratch[kListWarps] = total;
  return before + inclusive - mine;
}

inline constexpr int kShortList = 64;

// build_work_list for up to kShortList pairs: every pair counts the pairs before it.
__device__ inline MoeTotals build_short_list(const MoeWorkList& list, const int32_t* topk_ids,
                                             int num_pairs, int num_experts, int unit_rows) {
  constexpr int kNone = 0xFFFF, kUnitHead = 1, kExpertHead = 2;
  uint16_t* keys = list.histogram;      // [kShortList] expert, then pair
  uint16_t* heads = keys + kShortList;  // [kShortList] by sorted position
  const int pair = threadIdx.x, lane = threadIdx.x % 32;
  int expert = -1, key = kNone;
  if (pair < kShortList) {
    expert = pair_expert(topk_ids, pair, num_pairs, num_experts);
    key = expert >= 0 ? expert * kShortList + pair : kNone;
    keys[pair] = static_cast<uint16_t>(key);
    heads[pair] = 0;
  }
  __syncthreads();
  int position = 0, before = 0, same = 0;
  if (key != kNone) {
    for (int j = 0; j < num_pairs; ++j) {
      const int other = keys[j];
      const bool mine = other / kShortList == expert;
      position += other < key;
      same += mine;
      before += mine && other < key;
    }
    list.pairs[position] = static_cast<uint16_t>(pair);
    heads[position] = (before % unit_rows == 0 ? kUnitHead : 0) | (before == 0 ? kExpertHead : 0);
  }
  __syncthreads();
  const uint32_t low = __ballot_sync(~0u, heads[lane] & kUnitHead);
  const uint32_t high = __ballot_sync(~0u, heads[lane + 32] & kUnitHead);
  const int active = __popc(__ballot_sync(~0u, heads[lane] & kExpertHead)) +
                     __popc(__ballot_sync(~0u, heads[lane + 32] & kExpertHead));
  const int pairs = __popc(__ballot_sync(~0u, keys[lane] != kNone)) +
                    __popc(__ballot_sync(~0u, keys[lane + 32] != kNone));
  if (key != kNone && before % unit_rows == 0) {
    const uint64_t heads_before =
        (static_cast<uint64_t>(high) << 32 | low) & ((uint64_t{1} << position) - 1);
    list.units[__popcll(heads_before)] = {static_cast<uint16_t>(expert),
                                          static_cast<uint16_t>(position),
                                          static_cast<uint16_t>(min(unit_rows, same - before)), 0};
  }
  bulk_copy_shared_fence();
  __syncthreads();
  return {pairs, __popc(low) + __popc(high), active};
}

// Needs at least 32 * kListWarps threads. Ends with a block barrier after which bulk copies may
// overwrite the scratch.
__device__ inline MoeTotals build_work_list(const MoeWorkList& list, const int32_t* topk_ids,
                                            int num_tokens, int top_k, int num_experts,
                                            int unit_rows) {
  const int num_pairs = num_tokens * top_k;
  if (num_pairs <= kShortList && num_experts >= 16 && num_experts < 0xFFFF / kShortList) {
    return build_short_list(list, topk_ids, num_pairs, num_experts, unit_rows);
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunk = (num_pairs + 32 * kListWarps - 1) / (32 * kListWarps) * 32;
  const int begin = warp * chunk;
  const int end = warp < kListWarps ? min(num_pairs, begin + chunk) : 0;
  uint16_t* counts = list.histogram + min(warp, kListWarps - 1) * num_experts;

  for (int i = threadIdx.x; i < kListWarps * num_experts; i += blockDim.x) list.histogram[i] = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < num_pairs; i += blockDim.x) {
    list.experts[i] = static_cast<uint16_t>(pair_expert(topk_ids, i, num_pairs, num_experts));
  }
  __syncthreads();
  for (int first = begin; first < end; first += 32) {
    const int expert = listed_expert(list, first + lane, end);
    const uint32_t same = __match_any_sync(~0u, expert);
    if (expert >= 0 && lane == __ffs(same) - 1) counts[expert] += __popc(same);
    __syncwarp();
  }
  __syncthreads();

  // Each of the first 256 threads owns consecutive experts.
  const int per_thread = (num_experts + 32 * kListWarps - 1) / (32 * kListWarps);
  const int first_expert = min(num_experts, static_cast<int>(threadIdx.x) * per_thread);
  const int last_expert = min(num_experts, first_expert + per_thread);
  uint64_t mine = 0;
  for (int e = first_expert; e < last_expert; ++e) {
    int count = 0;
    for (int w = 0; w < kListWarps; ++w) count += list.histogram[w * num_experts + e];
    mine += pack_totals(count, (count + unit_rows - 1) / unit_rows, count > 0);
  }
  MoeTotals at = unpack_totals(scan_totals(mine, list.scan));
  for (int e = first_expert; e < last_expert; ++e) {
    int position = at.pairs;
    for (int w = 0; w < kListWarps; ++w) {
      const int count = list.histogram[w * num_experts + e];
      list.histogram[w * num_experts + e] = static_cast<uint16_t>(position);
      position += count;
    }
    for (; at.pairs < position; at.pairs = min(position, at.pairs + unit_rows)) {
      list.units[at.units++] = {static_cast<uint16_t>(e), static_cast<uint16_t>(at.pairs),
                                static_cast<uint16_t>(min(unit_rows, position - at.pairs)), 0};
    }
  }
  __syncthreads();
  for (int first = begin; first < end; first += 32) {
    const int expert = listed_expert(list, first + lane, end);
    const uint32_t same = __match_any_sync(~0u, expert);
    const int rank = __popc(same & ((1u << lane) - 1));
    const int position = expert >= 0 ? counts[expert] + rank : 0;
    if (expert >= 0) list.pairs[position] = static_cast<uint16_t>(first + lane);
    __syncwarp();
    if (expert >= 0 && rank == 0) counts[expert] += __popc(same);
    __syncwarp();
  }
  bulk_copy_shared_fence();
  __syncthreads();
  return unpack_totals(list.scan[kListWarps]);
}

}  // namespace coppice::kernels
