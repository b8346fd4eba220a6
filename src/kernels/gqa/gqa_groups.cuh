// Finds the groups of a window's rows and tells what chunks and steps a block has of them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/gqa/gqa_attention.h"
#include "kernels/gqa/gqa_attention_config.h"
#include "kernels/gqa/gqa_groups.h"

namespace coppice::kernels {

constexpr int kGqaStepsOfChunk = kGqaChunkPositions / kGqaStep;

// The position range a row sees.
__device__ __forceinline__ void gqa_range(const GqaAttentionParams& p, int row, int& begin,
                                          int& end) {
  begin = 0;
  end = p.kv_len[row] + p.path_len[row];
  if (p.sliding_window > 0) begin = max(0, p.positions[row] - p.sliding_window + 1);
  if (p.causal) end = min(end, p.positions[row] + 1);
}

__device__ __forceinline__ int gqa_first_chunk(int begin) {
  return begin / kGqaChunkPositions;
}

// Chunks of a group that sees [begin, end): one, an empty one, where it sees nothing.
__device__ __forceinline__ int gqa_num_chunks(int begin, int end) {
  return begin < end ? (end - 1) / kGqaChunkPositions - gqa_first_chunk(begin) + 1 : 1;
}

// Of a group's work, as its blocks share it: four for a chunk, two for a last one in which every
// part has a step at most.
__device__ __forceinline__ bool gqa_last_is_light(int end) {
  return (end + kGqaChunkPositions - 1) % kGqaChunkPositions < kGqaParts * kGqaStep;
}

// Finds the groups of the window's rows.
__device__ __forceinline__ void gqa_find_groups(const GqaAttentionParams& p, int window_row,
                                                int num_rows, int rows_of_group, GqaGroups& g) {
  constexpr int kFar = 1 << 30;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < num_rows; i += blockDim.x) {
    const int row = window_row + i;
    g.seq[i] = p.seq_of_row[row];
    gqa_range(p, row, g.row_begin[i], g.row_end[i]);
    g.kv_len[i] = p.kv_len[row];
    g.num_rows[i] = 0;
    g.begin[i] = g.table_end[i] = kFar;
    g.end[i] = g.longest[i] = 0;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int groups = 0, run = 0;  // where the row's run of one sequence starts
    for (int base = 0; base < num_rows; base += 32) {
      const int i = base + lane, seq = i < num_rows ? g.seq[i] : -1;
      const bool starts = i < num_rows && (i == 0 || g.seq[i - 1] != seq);
      const unsigned before = __ballot_sync(~0u, starts) & (~0u >> (31 - lane));
      const int my_run = before ? base + 31 - __clz(before) : run;
      const bool first = seq >= 0 && (i - my_run) % rows_of_group == 0;
      const unsigned firsts = __ballot_sync(~0u, first);
      const int group = groups + __popc(firsts & (~0u >> (31 - lane))) - 1;
      if (first) g.first_row[group] = i;
      if (seq >= 0) g.group_of_row[i] = static_cast<uint8_t>(group);
      groups += __popc(firsts);
      run = __shfl_sync(~0u, my_run, 31);
    }
    if (lane == 0) g.count = groups;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_rows; i += blockDim.x) {
    if (g.seq[i] < 0) continue;
    const int group = g.group_of_row[i], row = window_row + i;
    atomicAdd(&g.num_rows[group], 1);
    atomicMax(&g.longest[group], g.kv_len[i]);
    if (p.path_len[row] > 0) atomicMin(&g.table_end[group], g.kv_len[i]);
    if (g.row_begin[i] < g.row_end[i]) atomicMin(&g.begin[group], g.row_begin[i]);
    atomicMax(&g.end[group], g.row_end[i]);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int items = 0, work = 0, num_lights = 0;
    for (int base = 0; base < g.count; base += 32) {
      const int i = base + lane;
      const int chunks = i < g.count ? gqa_num_chunks(g.begin[i], g.end[i]) : 0;
      const int light = i < g.count && gqa_last_is_light(g.end[i]) ? 1 : 0;
      int sum = chunks, lights = light;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d),
                  other_lights = __shfl_up_sync(~0u, lights, d);
        if (lane >= d) sum += other, lights += other_lights;
      }
      if (i < g.count) {
        g.first_item[i] = items + sum - chunks;
        g.first_work[i] = work + 4 * (sum - chunks) - 2 * (lights - light);
      }
      items += __shfl_sync(~0u, sum, 31);
      work = 4 * items - 2 * (num_lights += __shfl_sync(~0u, lights, 31));
    }
    if (lane == 0) g.first_item[g.count] = items, g.first_work[g.count] = work;
  }
  __syncthreads();
}

// A step of a block's work: its `turn`th of a chunk of a group. The group follows from the item,
// the number of the chunk among those of all groups.
struct GqaCursor {
  int item, group, turn;
};

// The first item whose middle lies at `work` or behind it.
__device__ __forceinline__ int gqa_item_at(const GqaGroups& g, int work) {
  int low = 0, high = g.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (g.first_work[middle] <= work ? low : high) = middle;
  }
  const int chunks = g.first_item[low + 1] - g.first_item[low];
  const int whole = chunks - (gqa_last_is_light(g.end[low]) ? 1 : 0);
  const int offset = work - g.first_work[low];
  const int before = min(whole, (offset + 1) / 4);  // of whole chunks, with middles at 2, 6, ...
  const bool light_too = before == whole && whole < chunks && 4 * whole + 1 < offset;
  return g.first_item[low] + before + (light_too ? 1 : 0);
}

// Chunks that a cluster works on.
struct GqaItems {
  int first, last;
};

// Without a split all chunks of a group belong to one cluster.
template <bool kSplit>
__device__ __forceinline__ GqaItems gqa_items_of(const GqaGroups& g, int cluster, int clusters) {
  const int shared_out = kSplit ? g.first_work[g.count] : g.count;
  int first = shared_out * cluster / clusters;
  int last = shared_out * (cluster + 1) / clusters;
  if (kSplit) {
    first = gqa_item_at(g, first);
    last = cluster + 1 < clusters ? gqa_item_at(g, last) : g.first_item[g.count];
  } else {
    first = g.first_item[first], last = g.first_item[last];
  }
  return {first, last};
}

__device__ __forceinline__ GqaCursor gqa_cursor(const GqaGroups& g, int item) {
  int low = 0, high = g.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (g.first_item[middle] <= item ? low : high) = middle;
  }
  return {item, low, 0};
}

template <int kTurns>
__device__ __forceinline__ void gqa_advance(const GqaGroups& g, GqaCursor& c) {
  c.turn = (c.turn + 1) % kTurns;
  if (c.turn > 0) return;
  c.item++;
  if (c.item == g.first_item[c.group + 1]) c.group++;
}

struct GqaStepOf {
  int step;    // of absolute positions
  bool empty;  // no row of the group sees a key of it
  bool mixed;  // its keys differ from row to row
};

__device__ __forceinline__ GqaStepOf gqa_step_of(const GqaGroups& g, const GqaCursor& c,
                                                 int block) {
  const int begin = g.begin[c.group], end = g.end[c.group];
  const int chunk = (begin < end ? gqa_first_chunk(begin) : 0) + c.item - g.first_item[c.group];
  GqaStepOf s;
  s.step = chunk * kGqaStepsOfChunk + block + c.turn / 2 + kGqaParts * (c.turn % 2);
  s.empty = s.step * kGqaStep >= end || (s.step + 1) * kGqaStep <= begin;
  s.mixed = !s.empty && (s.step + 1) * kGqaStep > g.table_end[c.group];
  return s;
}

}  // namespace coppice::kernels
