// The work list of one step: rows packed into tiles, tiles cut into fragments for the CTAs, and the
// steps that hold undecided positions resolved into tail passes. One block, which resolves the
// passes while some of its warps search for the cut; passes of many rows have a kernel of their
// own.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/grid_dependency.cuh"
#include "kernels/mla/mla_cut.h"
#include "kernels/mla/mla_work.cuh"

namespace coppice::kernels {

__device__ __forceinline__ int mla_log2_steps(const MlaChunkTable& table, int position) {
  return position < table.until[0]   ? table.log2_steps[0]
         : position < table.until[1] ? table.log2_steps[1]
         : position < table.until[2] ? table.log2_steps[2]
                                     : table.log2_steps[3];
}

constexpr int kMlaLeastPlanThreads = 512, kMlaPlanThreads = 1024;
constexpr int kMlaPlanRows = 256;  // up to here their tiles are made in shared memory

// By pieces of 16 bytes, which a compiler does not do for structures of words.
template <class T>
__device__ __forceinline__ void mla_copy(T* to, const T* from) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / sizeof(uint4)); i++)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
}

// What a plan is made of: in shared memory or, of many rows, in the workspace.
struct MlaDraft {
  MlaTile* tiles;
  int32_t* tile_of_row;
  const int32_t* kv_len;
  const int32_t* path_len;
};

struct MlaDraftShared {
  MlaTile tiles[kMlaPlanRows];
  int32_t tile_of_row[kMlaPlanRows];
  int32_t kv_len[kMlaPlanRows];
  int32_t path_len[kMlaPlanRows];
};

// A flag of every thread of the block, by warps. A barrier lies between putting and counting.
struct MlaFlags {
  uint32_t warps[kMlaPlanThreads / 32];
};

// Up to the thread that asks and in all: how many, and the thread that is the last; -1: none.
struct MlaFlagCount {
  int count, last;
  int all, last_of_all;
};

__device__ __forceinline__ void mla_put_flag(MlaFlags& flags, bool flag) {
  const unsigned warp = __ballot_sync(~0u, flag);
  if (threadIdx.x % 32 == 0) flags.warps[threadIdx.x / 32] = warp;
}

__device__ __forceinline__ MlaFlagCount mla_count_flags(const MlaFlags& flags) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned of_lane = lane < static_cast<int>(blockDim.x) / 32 ? flags.warps[lane] : 0;
  const unsigned own = __shfl_sync(~0u, of_lane, warp) & (~0u >> (31 - lane));
  const int count = __popc(of_lane), last = of_lane == 0 ? -1 : lane * 32 + 31 - __clz(of_lane);
  const int before = __reduce_max_sync(~0u, lane < warp ? last : -1);
  return {__popc(own) + static_cast<int>(__reduce_add_sync(~0u, lane < warp ? count : 0)),
          own == 0 ? before : warp * 32 + 31 - __clz(own),
          static_cast<int>(__reduce_add_sync(~0u, count)), __reduce_max_sync(~0u, last)};
}

// Inclusive sum over the block, and that of all.
struct MlaSum {
  int value, all;
};

__device__ MlaSum mla_block_sum(int value, int* warps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += other;
  }
  if (lane == 31) warps[warp] = value;
  __syncthreads();
  const int of_lane = lane < static_cast<int>(blockDim.x) / 32 ? warps[lane] : 0;
  return {value + __reduce_add_sync(~0u, lane < warp ? of_lane : 0),
          __reduce_add_sync(~0u, of_lane)};
}

// Marks where runs of like rows and tiles begin. Returns the number of tiles.
__device__ int mla_pack_rows(const MlaAttentionParams& p, const MlaWorkspace& ws,
                             MlaDraftShared& shared, const MlaDraft& draft,
                             const MlaChunkTable& table, int nodes_per_tile, MlaFlags (&flags)[2]) {
  int run_before = -1, num_tiles = 0;
  for (int base = 0; base < p.num_rows; base += blockDim.x) {
    const int r = base + threadIdx.x;
    const bool in = r < p.num_rows, follows = in && r > 0;
    const int seq = in ? p.seq_of_row[r] : -1, previous_seq = follows ? p.seq_of_row[r - 1] : -1;
    const int kv_len = in ? p.kv_len[r] : 0, previous_kv_len = follows ? p.kv_len[r - 1] : 0;
    const int path_len = in ? p.path_len[r] : 0, previous_path = follows ? p.path_len[r - 1] : 0;
    const bool live = seq >= 0;
    const bool starts_run =
        live && (previous_seq != seq ||
                 mla_log2_steps(table, kv_len + path_len - 1) !=
                     mla_log2_steps(table, previous_kv_len + previous_path - 1) ||
                 (p.prompt ? kv_len != previous_kv_len + 1 : abs(kv_len - previous_kv_len) > 1));
    mla_put_flag(flags[0], starts_run);
    __syncthreads();
    const MlaFlagCount runs = mla_count_flags(flags[0]);
    const int run = runs.last < 0 ? run_before : base + runs.last;
    // Tiles of prompt rows lie at multiples of their size, so that none straddles a step.
    const bool starts_tile = live && (p.prompt ? r == run || (kv_len - 1) % nodes_per_tile == 0
                                               : (r - run) % nodes_per_tile == 0);
    mla_put_flag(flags[1], starts_tile);
    __syncthreads();
    const MlaFlagCount tiles = mla_count_flags(flags[1]);
    const int tile = live ? num_tiles + tiles.count - 1 : -1;
    if (in) ws.tile_of_row[r] = tile;
    if (in && p.num_rows <= kMlaPlanRows) {
      shared.tile_of_row[r] = tile;
      shared.kv_len[r] = kv_len;
      shared.path_len[r] = path_len;
    }
    if (starts_tile) draft.tiles[tile].first_row = r;
    if (runs.last_of_all >= 0) run_before = base + runs.last_of_all;
    num_tiles += tiles.all;
  }
  __syncthreads();
  return num_tiles;
}

// Whether the path of a row holds the slots that the block table has for its positions, as it does
// for a sequence's first undecided token. Long paths are not looked at.
__device__ bool mla_path_in_table(const MlaAttentionParams& p, int row) {
  constexpr int kLongest = 8;
  const int kv_len = p.kv_len[row], path_len = p.path_len[row];
  if (path_len > kLongest) return false;
  bool equal = true;
#pragma unroll
  for (int i = 0; i < kLongest; i++) {
    if (i >= path_len) continue;
    const int position = kv_len + i;
    const int block =
        p.block_tables[int64_t{p.seq_of_row[row]} * p.max_blocks + position / kMlaStepPositions];
    equal = equal && p.path[int64_t{row} * p.max_path + i] ==
                         block * kMlaStepPositions + position % kMlaStepPositions;
  }
  return equal;
}

// Everything about tile `t` that follows from its rows.
__device__ MlaTile mla_make_tile(const MlaAttentionParams& p, const MlaDraft& draft,
                                 const MlaChunkTable& table, int nodes_per_tile, int passes_per_row,
                                 int t) {
  MlaTile tile = {};
  tile.first_row = draft.tiles[t].first_row;
  tile.seq = p.seq_of_row[tile.first_row];
  int kv_begin = 1 << 30, end = 0;
#pragma unroll
  for (int i = 0; i < kMlaMaxNodes; i++) {
    // Read from every row, so that the loads overlap.
    const int r = min(tile.first_row + i, p.num_rows - 1);
    const int kv_len = draft.kv_len[r], path_len = draft.path_len[r], of_row = draft.tile_of_row[r];
    if (i >= nodes_per_tile || tile.first_row + i >= p.num_rows || of_row != t) continue;
    tile.num_nodes++;
    kv_begin = min(kv_begin, kv_len);
    tile.kv_end = max(tile.kv_end, kv_len);
    end = max(end, kv_len + path_len);
  }
  tile.log2_steps =
      mla_log2_steps(table, draft.kv_len[tile.first_row] + draft.path_len[tile.first_row] - 1);
  tile.full_steps = kv_begin / kMlaStepPositions;
  // As far as these rows know: a position that a row of this step holds is new.
  tile.old_steps = max(kv_begin - 1, 0) / kMlaStepPositions;
  tile.last_step = (end + kMlaStepPositions - 1) / kMlaStepPositions - 1;
  tile.num_chunks = max(tile.last_step, 0) / (1 << tile.log2_steps) + 1;
  tile.first_pass = tile.first_row * passes_per_row;
  tile.in_table =
      !p.prompt && tile.num_nodes == 1 && end > 0 && mla_path_in_table(p, tile.first_row);
  return tile;
}

__device__ __forceinline__ int mla_warp_sum(int x) {
  return __reduce_add_sync(~0u, x);
}

struct MlaChoice {
  MlaCut cut;
  int cost;
  // Where teams share a line:
  MlaLine line;
  int turns;  // the most parts of a team
  int slots;  // for each fragment
};

constexpr int kMlaNoCut = 1 << 30;  // cost of a cut that there is not

// A plan runs most of its code once, out of a cold instruction cache: long functions stand once,
// and loops that few groups seldom repeat are not unrolled.
__device__ __noinline__ int mla_slots_of(const MlaGroup& group, const MlaCut& cut, int parts) {
  return mla_part_slots(group, cut, parts);
}

// Sum over an aligned run of `width` lanes, a power of two.
__device__ __forceinline__ int mla_lanes_sum(int x, int width) {
  if (width == 32) return mla_warp_sum(x);
#pragma unroll 1
  for (int d = 1; d < width; d *= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

constexpr int kMlaFewGroups = 4;  // with more, asking ahead takes longer than it saves

// A cut is searched by halves between a limit that does not fit and one that does.
struct MlaLimits {
  int low, high;
};

// The limit to ask for next; 0: none, all cuts between are one. `bits`: of the steps of a chunk.
__device__ __forceinline__ int mla_next_limit(const MlaLimits& limits, int bits) {
  const auto [low, high] = limits;
  const bool one = high - low <= 1 || (low > 0 && (high - 1) >> bits == low >> bits);
  return one ? 0 : (low + high) / 2;
}

// Whether the fragments of a cut fit, for the lanes that ask for it: `width` neighbours each.
__device__ __forceinline__ bool mla_cut_fits(const MlaGroup* groups, int num_groups,
                                             const MlaCut& cut, int width, int max_fragments,
                                             int max_slots) {
  const int first = threadIdx.x % width;
  int fragments = 0, most_slots = 0;
#pragma unroll 1
  for (int i = first; i < num_groups; i += width) {
    const MlaGroup group = groups[i];
    const int of_group = group.size * mla_parts(group, cut);
    fragments += of_group;
    most_slots += of_group * mla_most_slots(group, cut, mla_cut_longest(group, cut));
  }
  const bool fits = mla_lanes_sum(fragments, width) <= max_fragments;
  const bool enough = mla_lanes_sum(most_slots, width) <= max_slots;
  const bool known = !fits || enough;
  if (__all_sync(~0u, known)) return fits;
  int slots = 0;  // exactly
#pragma unroll 1
  for (int i = known ? num_groups : first; i < num_groups; i += width) {
    const int parts = mla_parts(groups[i], cut);
    slots += groups[i].size * parts * mla_slots_of(groups[i], cut, parts);
  }
  return mla_lanes_sum(slots, width) <= max_slots && fits;
}

// The cut with the shortest longest fragment whose fragments fit into `rounds` fragments a CTA. One
// warp. With few groups its lanes ask what comes after either answer too: questions are numbered as
// a tree, those after question q are 2q, if it fits, and 2q + 1.
__device__ MlaChoice mla_search_cut(const MlaGroup* groups, int num_groups, int rounds, bool join,
                                    int num_ctas, int max_slots) {
  const int lane = threadIdx.x % 32;
  int most = 1, fewest_bits = 31;  // steps of a group, and of its chunks
#pragma unroll 1
  for (int i = lane; i < num_groups; i += 32) {
    most = max(most, groups[i].chunks << groups[i].log2_steps);
    fewest_bits = min(fewest_bits, groups[i].log2_steps);
  }
  most = __reduce_max_sync(~0u, most), fewest_bits = __reduce_min_sync(~0u, fewest_bits);
  const int log2_width = num_groups > kMlaFewGroups ? 5 : mla_log2(max(2 * num_groups - 1, 1));
  const int after_last = 1 << mla_log2((32 >> log2_width) + 1);
  const int own = (lane >> log2_width) + 1;
  // From `most` on all cuts are one, and so are those between two multiples of the chunks.
  MlaLimits limits = {0, kMlaUncut};
  bool whole = true;  // first: whether tiles fit that are not cut
  for (int next = kMlaUncut - 1; next > 0; whole = false) {
    MlaLimits own_limits = limits;
    int limit = next;
    for (int bit = mla_log2(own) - 1; bit >= 0 && !whole; bit--) {
      (own >> bit & 1 ? own_limits.low : own_limits.high) = limit;
      limit = (own_limits.low + own_limits.high) / 2;
    }
    const unsigned fit =
        __ballot_sync(~0u, mla_cut_fits(groups, num_groups, {limit, join}, 1 << log2_width,
                                        rounds * num_ctas, max_slots));
    if (whole && fit != ~0u) return {{}, kMlaNoCut, {}, 0, 0};
    while (whole && limits.high / 2 >= most) limits.high /= 2;
    if (whole) next = mla_next_limit(limits, fewest_bits);
    for (int q = 1; q < after_last && next > 0 && !whole;) {
      const bool fits = fit >> ((q - 1) << log2_width) & 1;
      (fits ? limits.high : limits.low) = next;
      q = 2 * q + !fits;
      next = mla_next_limit(limits, fewest_bits);
    }
  }
  const int high = limits.high;
  int longest = 0;
#pragma unroll 1
  for (int i = lane; i < num_groups; i += 32) {
    const int chunks = mla_cut_chunks(groups[i], {high, join});
    const int parts = mla_parts(groups[i], {high, join});
    const int joined = chunks < groups[i].chunks ? kMlaJoinedSteps : 0;
    longest = max(longest, (mla_longest_part(chunks, parts) << groups[i].log2_steps) + joined);
  }
  longest = __reduce_max_sync(~0u, longest);
  return {{high, join}, rounds * (longest + kMlaFixedSteps), {}, 0, 0};
}

// The line of all groups, if they are of one size. Leaves their places in `places`. One warp.
__device__ MlaChoice mla_search_line(const MlaGroup* groups, int num_groups, bool coarser,
                                     int num_ctas, int max_slots, MlaLinePlace* places) {
  const int lane = threadIdx.x % 32, size = groups[0].size;
  int chunks = 0;
  bool alike = num_groups > 1 && size <= num_ctas;
#pragma unroll 1
  for (int base = 0; base < num_groups; base += 32) {
    const int i = base + lane;
    const MlaGroup group = groups[min(i, num_groups - 1)];
    alike = alike && group.size == size && group.log2_steps == groups[0].log2_steps;
    int end = i < num_groups ? group.chunks : 0;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, end, d);
      if (lane >= d) end += other;
    }
    if (i < num_groups) places[i].offset = chunks + end - group.chunks;
    chunks += __shfl_sync(~0u, end, 31);
  }
  if (!__all_sync(~0u, alike)) return {{}, kMlaNoCut, {}, 0, 0};
  const MlaLine line = mla_line(chunks, num_ctas / size, coarser);
#pragma unroll 1
  for (int i = lane; i < num_groups; i += 32)
    places[i] = mla_line_place(line, places[i].offset, groups[i].chunks);
  __syncwarp();
  int longest = 0, turns = 0, slots = 0, fragments = 0;
#pragma unroll 1
  for (int team = lane; team < line.teams; team += 32) {
    int i = 0, after = num_groups;  // the first group that the team works on
    while (i < after) {
      const int mid = (i + after) / 2;
      if (places[mid].last < team)
        i = mid + 1;
      else
        after = mid;
    }
    int steps = 0, parts = 0;
#pragma unroll 1
    for (; i < num_groups && places[i].first <= team; i++, parts++) {
      const MlaRun run = mla_line_run(line, places[i], groups[i], team);
      steps += mla_run_cost(run, groups[i]);
      slots = max(slots, mla_run_slots(run.begin, run.end - run.begin));
    }
    longest = max(longest, steps), turns = max(turns, parts);
    fragments += size * parts;
  }
  longest = __reduce_max_sync(~0u, longest), turns = __reduce_max_sync(~0u, turns);
  slots = __reduce_max_sync(~0u, slots);
  const bool fits = turns <= kMlaMaxRounds && mla_warp_sum(fragments) * slots <= max_slots;
  return {{}, fits ? longest : kMlaNoCut, line, turns, slots};
}

__device__ __forceinline__ bool mla_same_group(const MlaTile& a, const MlaTile& b) {
  return a.seq == b.seq && a.log2_steps == b.log2_steps;
}

// Gives each tile its place in its group. Leaves the group's size and last step in its first tile,
// as group_size and, of which no tile has need before the cut is made, line_offset; and what is old
// for a sequence in the sequence's first tile. Returns the groups; `group`: that of the thread's
// own tile, the last of them.
__device__ int mla_find_groups(MlaTile* tiles, int num_tiles, MlaFlags (&flags)[2], int& group) {
  int lead_before = 0, first_before = 0, num_groups = 0;
  for (int base = 0; base < num_tiles; base += blockDim.x) {
    const int t = base + threadIdx.x;
    const bool live = t < num_tiles, starts = live && t == 0;
    mla_put_flag(flags[0], starts || (live && !mla_same_group(tiles[t - 1], tiles[t])));
    mla_put_flag(flags[1], starts || (live && tiles[t - 1].seq != tiles[t].seq));
    __syncthreads();
    const MlaFlagCount leads = mla_count_flags(flags[0]), firsts = mla_count_flags(flags[1]);
    const int lead = leads.last < 0 ? lead_before : base + leads.last;
    const int first = firsts.last < 0 ? first_before : base + firsts.last;
    if (live) {
      tiles[t].group_index = t - lead;
      atomicAdd(&tiles[lead].group_size, 1);
      atomicMax(&tiles[lead].line_offset, tiles[t].last_step);
      atomicMin(&tiles[first].old_steps, tiles[t].old_steps);
    }
    group = num_groups + leads.count - 1;
    num_groups += leads.all;
    if (leads.last_of_all >= 0) lead_before = base + leads.last_of_all;
    if (firsts.last_of_all >= 0) first_before = base + firsts.last_of_all;
    __syncthreads();
  }
  return num_groups;
}

__device__ int mla_old_steps(const MlaTile* tiles, int t) {
  int first = t;
  while (first > 0 && tiles[first - 1].seq == tiles[t].seq)
    first -= tiles[first - 1].group_index + 1;
  return tiles[first].old_steps;
}

// From what mla_find_groups left in the group's first tile.
__device__ __forceinline__ MlaGroup mla_group_of(const MlaTile& first) {
  return mla_group(first.group_size, first.line_offset, first.log2_steps);
}

// A single token with few keys, whose chunks clusters do.
__device__ __forceinline__ bool mla_single_token(const MlaTile& tile, const MlaGroup& group) {
  return tile.in_table && 1 << group.log2_steps <= kMlaTurnSteps &&
         group.chunks <= kMlaSingleChunks;
}

// Resolves one step for nodes [begin, end) of a tile; returns false if they need more than 64
// listed keys. One warp; lane = (node % 8) + 8 * (position % 4).
__device__ bool mla_resolve_pass(const MlaAttentionParams& p, const MlaTile& tile, int step,
                                 int begin, int end, MlaTailPass* pass) {
  constexpr int kGroups = kMlaStepPositions / 4;
  const int lane = threadIdx.x % 32, node = lane % 8;
  const int row = tile.first_row + node;
  const bool in_pass = node >= begin && node < end;
  const int kv_len = in_pass ? p.kv_len[row] : 0;
  const int length = in_pass ? kv_len + p.path_len[row] : 0;
  int slots[kGroups];  // all first, so that their loads overlap
#pragma unroll
  for (int i = 0; i < kGroups; i++) {
    const int position = step * kMlaStepPositions + 4 * i + lane / 8;
    const bool from_path = position >= kv_len && position < length;
    slots[i] = from_path ? p.path[static_cast<int64_t>(row) * p.max_path + position - kv_len] : -1;
  }
  int listed = 0, any_column = kMlaMasked;
  uint8_t codes[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; i++) {
    const int column = 4 * i + lane / 8, position = step * kMlaStepPositions + column;
    const bool from_path = slots[i] >= 0;
    // Equal slots at the same position share a place in the list; the lowest lane speaks for them.
    // A match takes time for each different number, so lanes without a key of a path share one.
    int leader = lane;
    if (__any_sync(~0u, from_path))
      leader = __ffs(__match_any_sync(~0u, from_path ? slots[i] << 2 | lane / 8 : -1)) - 1;
    const unsigned leaders = __ballot_sync(~0u, from_path && leader == lane);
    const int index = listed + __popc(leaders & ((1u << leader) - 1));
    listed += __popc(leaders);
    if (listed > kMlaStepPositions) return false;
    codes[i] = static_cast<uint8_t>(from_path           ? index
                                    : position < kv_len ? kMlaFromTable + column
                                                        : kMlaMasked);
    if (codes[i] != kMlaMasked) any_column = codes[i];
    if (from_path && leader == lane) pass->slot[index] = slots[i];
  }
  // A loaded key of the same node for its masked positions; nodes outside need none.
  for (int d = 8; d < 32; d *= 2) {
    const int other = __shfl_xor_sync(~0u, any_column, d);
    if (any_column == kMlaMasked) any_column = other;
  }
#pragma unroll
  for (int i = 0; i < kGroups; i++)
    pass->column[node][4 * i + lane / 8] =
        codes[i] == kMlaMasked ? static_cast<uint8_t>(kMlaMasked | any_column) : codes[i];
  if (lane == 0) {
    pass->step = step;
    pass->node_begin = begin;
    pass->node_end = end;
    pass->num_listed = listed;
    pass->num_from_table = min(max(tile.kv_end - step * kMlaStepPositions, 0), kMlaStepPositions);
  }
  return true;
}

// Steps that need more than 64 listed keys are split by nodes. One warp; returns the passes.
__device__ int mla_resolve_tile(const MlaAttentionParams& p, const MlaWorkspace& ws,
                                const MlaTile& tile) {
  if (tile.in_table) return 0;
  int count = 0;
  for (int step = tile.full_steps; step <= tile.last_step; step++) {
    int group = kMlaMaxNodes;
    for (bool done = false; !done; group /= 2) {
      done = true;
      int n = count;
      for (int begin = 0; begin < tile.num_nodes && done; begin += group)
        done = mla_resolve_pass(p, tile, step, begin, min(begin + group, tile.num_nodes),
                                ws.passes + tile.first_pass + n++);
      if (done) count = n;
    }
  }
  return count;
}

// By the block's warps, each as it gets to it; `next_tile`: in shared memory.
__device__ __forceinline__ void mla_resolve_tiles(const MlaAttentionParams& p,
                                                  const MlaWorkspace& ws, MlaTile* tiles,
                                                  int num_tiles, int& next_tile) {
  const int lane = threadIdx.x % 32;
  while (true) {
    const int t = __shfl_sync(~0u, lane == 0 ? atomicAdd(&next_tile, 1) : 0, 0);
    if (t >= num_tiles) break;
    const int count = mla_resolve_tile(p, ws, tiles[t]);
    __syncwarp();
    if (lane == 0) tiles[t].num_passes = count;
  }
}

// How a launch plans.
struct MlaPlanOptions {
  int nodes_per_tile;
  int num_ctas;
  int max_slots;
  bool clustered;  // the CTAs are
  bool lines;      // the merging kernel knows lines
  bool passes;     // resolved here
};

// Cuts for each number of rounds, then lines; of both two, a warp each.
constexpr int kMlaCuts = 2 * kMlaMaxRounds, kMlaChoices = kMlaCuts + 2;

__device__ __forceinline__ void mla_search(int warp, int lane, const MlaGroup* groups,
                                           int num_groups, const MlaPlanOptions& options,
                                           MlaChoice* choices,
                                           MlaLinePlace (*places)[kMlaMaxCutTiles]) {
  if (warp < kMlaCuts) {
    const MlaChoice choice = mla_search_cut(groups, num_groups, warp / 2 + 1, warp % 2 == 1,
                                            options.num_ctas, options.max_slots);
    if (lane == 0) choices[warp] = choice;
  } else if (warp < kMlaChoices) {
    MlaChoice choice = {{}, kMlaNoCut, {}, 0, 0};
    if (options.lines && num_groups > 1)
      choice = mla_search_line(groups, num_groups, warp % 2 == 1, options.num_ctas,
                               options.max_slots, places[warp % 2]);
    if (lane == 0) choices[warp] = choice;
  }
}

// The first with the lowest cost; -1: none is a cut. Whole warps.
__device__ __forceinline__ int mla_cheapest(const MlaChoice* choices) {
  const int lane = threadIdx.x % 32;
  const int cost = lane < kMlaChoices ? choices[lane].cost : kMlaNoCut;
  const int lowest = __reduce_min_sync(~0u, cost);
  return lowest == kMlaNoCut ? -1 : __ffs(__ballot_sync(~0u, cost == lowest)) - 1;
}

// The tile's part of the line that all groups lie on; `size`: of its group.
__device__ __forceinline__ void mla_put_on_line(const MlaLinePlace* places, int group, int size,
                                                int slots, int num_ctas, MlaTile& tile) {
  const MlaLinePlace* const at = places + group;
  tile.parts = at->last - at->first + 1;
  tile.fragment_slots = slots;
  // Behind the parts of earlier groups that the first team has.
  int turn = 0;
  while (turn < group && at[-1 - turn].last == at->first) turn++;
  tile.first_fragment = turn * num_ctas + at->first * size;
  tile.line_offset = at->offset;
}

// Numbers fragments and slots over the tiles of all threads; a group's first tile counts for it.
// Slots are too few for 16 bits. Whole blocks; returns the fragments of all.
__device__ __forceinline__ int mla_number_fragments(bool live, const MlaLine& line, int* warp_sums,
                                                    MlaTile& tile) {
  const int fragments = tile.group_size * tile.parts;
  const int of_group = fragments * tile.fragment_slots << 16 | fragments;
  const MlaSum sum = mla_block_sum(live && tile.group_index == 0 ? of_group : 0, warp_sums);
  const int before = sum.value - of_group;
  if (line.teams == 0) tile.first_fragment = before & 0xFFFF;
  tile.first_slot = before >> 16;
  return sum.all & 0xFFFF;
}

// Clears as many fragments, piece by piece, so that neighbouring threads write neighbouring pieces.
__device__ __forceinline__ void mla_clear_fragments(MlaFragment* fragments, int count) {
  constexpr int kPieces = sizeof(MlaFragment) / sizeof(uint4);
  uint4* const to = reinterpret_cast<uint4*>(fragments);
  for (int i = threadIdx.x; i < count * kPieces; i += blockDim.x) to[i] = {};
}

// As many threads a tile as the block has for each, a power of two.
__device__ __forceinline__ void mla_write_fragments(const MlaWorkspace& ws, const MlaTile* tiles,
                                                    int num_tiles, const MlaLine& line,
                                                    bool uncut) {
  const int threads = blockDim.x;
  const int log2_each = mla_log2(max(threads / max(num_tiles, 1), 1)), each = 1 << log2_each;
  for (int i = threadIdx.x; i < num_tiles << log2_each; i += threads) {
    const MlaTile* const tile = tiles + (i >> log2_each);
    for (int part = i & (each - 1); part < tile->parts; part += each) {
      __align__(16) MlaFragment f = {};
      mla_copy(&f.tile, tile);
      f.chunk_begin = mla_part_begin(f.tile, line, part);
      f.chunk_end = mla_part_begin(f.tile, line, part + 1);
      f.slot = uncut ? -1 : mla_part_slot(f.tile, part);
      mla_copy(ws.fragments + mla_fragment_index(f.tile, line, part), &f);
    }
  }
}

// One block. Packs rows into tiles and cuts tiles into fragments.
__global__ void __launch_bounds__(kMlaPlanThreads)
    mla_plan_tiles(MlaAttentionParams p, MlaWorkspace ws, MlaChunkTable table,
                   MlaPlanOptions options) {
  __shared__ __align__(16) MlaDraftShared shared;
  __shared__ MlaFlags flags[2];
  __shared__ int warp_sums[kMlaPlanThreads / 32];
  __shared__ MlaGroup groups[kMlaMaxCutTiles];
  __shared__ MlaLinePlace places[2][kMlaMaxCutTiles];
  __shared__ MlaChoice choices[kMlaChoices];
  __shared__ int next_tile;
  const bool few = p.num_rows <= kMlaPlanRows;
  const MlaDraft draft = {few ? shared.tiles : ws.tiles, few ? shared.tile_of_row : ws.tile_of_row,
                          few ? shared.kv_len : p.kv_len, few ? shared.path_len : p.path_len};
  MlaTile* const tiles = draft.tiles;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) next_tile = 0;
  grid_dependency_wait();
  const int num_tiles = mla_pack_rows(p, ws, shared, draft, table, options.nodes_per_tile, flags);
  for (int t = threadIdx.x; t < num_tiles; t += blockDim.x) {
    __align__(16) const MlaTile tile =
        mla_make_tile(p, draft, table, options.nodes_per_tile, ws.passes_per_row, t);
    mla_copy(tiles + t, &tile);
  }
  __syncthreads();
  int own_group = 0, num_groups = 0;
  if (!p.prompt) num_groups = mla_find_groups(tiles, num_tiles, flags, own_group);

  // No more tiles are cut than there are threads.
  const bool cuts =
      !p.prompt && num_tiles <= min(kMlaMaxCutTiles, kMlaMaxRounds * options.num_ctas);
  if (cuts) {
    if (threadIdx.x < num_tiles && tiles[threadIdx.x].group_index == 0)
      groups[own_group] = mla_group_of(tiles[threadIdx.x]);
    __syncthreads();
    mla_search(warp, lane, groups, num_groups, options, choices, places);
  }
  if (options.passes) mla_resolve_tiles(p, ws, tiles, num_tiles, next_tile);
  __syncthreads();
  MlaChoice best = {{kMlaUncut, false}, kMlaNoCut, {}, 0, 0};
  const int chosen = cuts ? mla_cheapest(choices) : -1;
  if (chosen >= 0) best = choices[chosen];
  const bool single_token =
      options.clustered && num_tiles == 1 && mla_single_token(tiles[0], mla_group_of(tiles[0]));
  if (single_token) best = {{1, false}, 0, {}, 0, 0};  // one chunk per fragment
  const bool uncut = best.cost == kMlaNoCut;
  const MlaLine line = best.line;

  int num_fragments = num_tiles;
  for (int base = 0; base < num_tiles; base += blockDim.x) {  // once, if tiles are cut
    const int t = base + threadIdx.x;
    const bool live = t < num_tiles;
    __align__(16) MlaTile tile = {};
    if (live) {
      mla_copy(&tile, tiles + t);
      const int lead = t - tile.group_index;
      const MlaGroup group =
          p.prompt ? mla_group(1, tile.last_step, tile.log2_steps) : mla_group_of(tiles[lead]);
      if (!p.prompt) tile.old_steps = mla_old_steps(tiles, t);
      tile.group_size = group.size;
      tile.cut_chunks = mla_cut_chunks(group, best.cut);
      tile.parts = 1;
      tile.first_fragment = lead;
      if (line.teams > 0) {
        mla_put_on_line(places[chosen % 2], own_group, group.size, best.slots, options.num_ctas,
                        tile);
      } else if (!uncut) {
        tile.parts = mla_parts(group, best.cut);
        tile.fragment_slots = mla_slots_of(group, best.cut, tile.parts);
      }
    }
    if (!uncut) num_fragments = mla_number_fragments(live, line, warp_sums, tile);
    if (!live) continue;
    mla_copy(tiles + t, &tile);
    if (few) mla_copy(ws.tiles + t, &tile);
  }
  if (line.teams > 0) {
    num_fragments = best.turns * options.num_ctas;  // some are empty
    mla_clear_fragments(ws.fragments, num_fragments);
  }
  if (threadIdx.x == 0) *ws.header = {num_tiles, num_fragments, single_token, line};
  __syncthreads();
  mla_write_fragments(ws, tiles, num_tiles, line, uncut);
}

// Of many rows. One warp per tile.
__global__ void mla_plan_passes(MlaAttentionParams p, MlaWorkspace ws) {
  const int t = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (t >= ws.header->num_tiles) return;
  const MlaLine line = ws.header->line;
  const MlaTile tile = ws.tiles[t];
  const int count = mla_resolve_tile(p, ws, tile);
  if (lane == 0) ws.tiles[t].num_passes = count;
  for (int part = lane; part < tile.parts; part += 32)
    ws.fragments[mla_fragment_index(tile, line, part)].tile.num_passes = count;
}

}  // namespace coppice::kernels
