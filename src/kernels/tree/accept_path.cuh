// One warp per sequence. Which child a choice leads to is found for all nodes at once; what is left
// is a chase of at most max_path links, then one lane per accepted row.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/tree/accept_path.h"

namespace coppice::kernels {

inline constexpr int kAcceptBlockSlots = 64;

// Outputs of one path place (sequence * max_path + lane).
struct PathPlace {
  int32_t row = -1;
  int32_t token = -1;
  int32_t move_src = -1;
  int32_t move_dst = -1;
  int32_t position = 0;
  int32_t slot = -1;
};

__device__ __forceinline__ void write_place(const AcceptPathParams& params, int at,
                                            const PathPlace& place) {
  params.accepted_rows[at] = place.row;
  params.emitted[at] = place.token;
  params.move_src[at] = place.move_src;
  params.move_dst[at] = place.move_dst;
  params.feature_rows[at] = place.row;
  params.feature_positions[at] = place.position;
  params.feature_slots[at] = place.slot;
}

// Fills next[node] with the child that the choice at `node` names, or -1.
__device__ __forceinline__ void link_children(const AcceptPathParams& params, int seq, int first,
                                              int rows, int32_t* next) {
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t base = static_cast<int64_t>(seq) * (params.trees.max_nodes + 1);
  for (int node = lane; node < rows; node += 32) next[node] = -1;
  __syncwarp();
  for (int node = lane + 1; node < rows; node += 32) {
    const int parent = params.trees.parents[base + node];
    if (params.choices[first + parent] == params.trees.tokens[base + node]) next[parent] = node;
  }
  __syncwarp();
}

// The first lane with an event ends the path there.
struct PathEnd {
  int emitted;
  int32_t reason;
};

__device__ __forceinline__ PathEnd settle(const AcceptPathParams& params, int seq, int length,
                                          int32_t token, bool finite, int32_t emitted_before) {
  const int lane = static_cast<int>(threadIdx.x);
  int32_t reason = kAcceptNone;
  if (lane < length) {
    const int32_t before = emitted_before + lane;
    bool stop = false;
    for (int i = 0; i < params.max_stop_ids; ++i) {
      const int32_t id = params.stop_ids[static_cast<int64_t>(seq) * params.max_stop_ids + i];
      stop = stop || (id >= 0 && id == token);
    }
    if (!finite) {
      reason = kAcceptNotFinite;
    } else if (stop) {
      reason = kAcceptStop;
    } else if (before + 1 >= params.max_tokens[seq]) {
      reason = kAcceptLength;
    }
  }
  const unsigned events = __ballot_sync(0xffffffffu, reason != kAcceptNone);
  if (events == 0) return {length, kAcceptNone};
  const int at = __ffs(static_cast<int>(events)) - 1;
  reason = __shfl_sync(0xffffffffu, reason, at);
  return {reason == kAcceptNotFinite ? at : at + 1, reason};
}

// grid: one warp per sequence. Dynamic shared memory: int32 [max_nodes + 1].
__global__ __launch_bounds__(32) void accept_path_kernel(AcceptPathParams params) {
  extern __shared__ int32_t next[];
  grid_dependency_wait();
  grid_dependency_launch();
  const int seq = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x);
  const int first = params.row_offsets[seq];
  const int rows = params.row_offsets[seq + 1] - first;
  const int32_t start = params.context_len[seq];
  const int32_t history_len = params.history_len[seq];
  const int32_t emitted_before = history_len - params.prompt_len[seq];
  int length = 0;
  int node = -1;
  if (rows > 0) {
    link_children(params, seq, first, rows, next);
    for (int at = 0; at >= 0 && length < params.max_path; ++length) {
      if (lane == length) node = at;
      at = next[at];
    }
  }
  const bool on_path = lane < length;
  const int32_t token = on_path ? params.choices[first + node] : -1;
  const bool finite = on_path && params.finite[first + node] != 0;
  const PathEnd end = settle(params, seq, length, token, finite, emitted_before);
  PathPlace place;
  if (lane < end.emitted) {
    const int32_t position = start + lane;
    const int64_t blocks = static_cast<int64_t>(seq) * params.max_blocks;
    place.row = first + node;
    place.token = token;
    place.position = position;
    place.slot = params.block_tables[blocks + position / kAcceptBlockSlots] * kAcceptBlockSlots +
                 position % kAcceptBlockSlots;
    if (node != lane) {
      place.move_src = params.slots[place.row];
      place.move_dst = place.slot;
    }
    if (params.history != nullptr && history_len + lane < params.history_stride) {
      params.history[static_cast<int64_t>(seq) * params.history_stride + history_len + lane] =
          token;
    }
    if (lane == end.emitted - 1 && end.reason == kAcceptNone) params.anchors[seq] = token;
  }
  if (lane == 0 && end.reason != kAcceptNone) params.anchors[seq] = -1;
  if (lane < params.max_path) write_place(params, seq * params.max_path + lane, place);
  if (lane == 0) {
    params.num_emitted[seq] = end.emitted;
    params.finish_reason[seq] = end.reason;
    params.context_len[seq] = start + end.emitted;
    params.history_len[seq] = history_len + end.emitted;
  }
}

}  // namespace coppice::kernels
