// The work list of one step: rows packed into tiles, tiles cut into fragments for the CTAs, and the
// steps that hold undecided positions resolved into tail passes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/mla/mla_cut.h"
#include "kernels/mla/mla_work.cuh"

namespace coppice::kernels {

__device__ __forceinline__ int mla_log2_steps(const MlaChunkTable& table, int position) {
  return position < table.until[0]   ? table.log2_steps[0]
         : position < table.until[1] ? table.log2_steps[1]
         : position < table.until[2] ? table.log2_steps[2]
                                     : table.log2_steps[3];
}

constexpr int kMlaPlanThreads = 1024;

// Inclusive scan over the block; `carry` holds the result of earlier rounds and is updated.
template <class Op>
__device__ int mla_block_scan(int value, int& carry, Op op, int* warp_totals) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int num_warps = blockDim.x / 32;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value = op(other, value);
  }
  __syncthreads();
  if (lane == 31) warp_totals[warp] = value;
  __syncthreads();
  int total = warp_totals[min(lane, num_warps - 1)];
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, total, d);
    if (lane >= d && lane < num_warps) total = op(other, total);
  }
  const int before = __shfl_sync(~0u, total, max(warp - 1, 0));
  const int all = __shfl_sync(~0u, total, num_warps - 1);
  value = op(carry, warp > 0 ? op(before, value) : value);
  carry = op(carry, all);
  return value;
}

struct MlaAdd {
  __device__ int operator()(int a, int b) const { return a + b; }
};
struct MlaMax {
  __device__ int operator()(int a, int b) const { return a > b ? a : b; }
};

// Marks where runs of like rows and tiles begin. Returns the number of tiles.
__device__ int mla_pack_rows(const MlaAttentionParams& p, const MlaWorkspace& ws,
                             const MlaChunkTable& table, int nodes_per_tile, int* warp_totals) {
  int run_carry = -1, tile_carry = 0;
  for (int base = 0; base < p.num_rows; base += blockDim.x) {
    const int r = base + threadIdx.x;
    const bool live = r < p.num_rows && p.seq_of_row[r] >= 0;
    bool starts_run = live;
    if (live && r > 0 && p.seq_of_row[r - 1] == p.seq_of_row[r]) {
      const int position = p.kv_len[r] + p.path_len[r] - 1;
      const int previous = p.kv_len[r - 1] + p.path_len[r - 1] - 1;
      starts_run =
          mla_log2_steps(table, position) != mla_log2_steps(table, previous) ||
          (p.prompt ? p.kv_len[r] != p.kv_len[r - 1] + 1 : abs(p.kv_len[r] - p.kv_len[r - 1]) > 1);
    }
    const int run = mla_block_scan(starts_run ? r : -1, run_carry, MlaMax{}, warp_totals);
    // Tiles of prompt rows lie at multiples of their size, so that none straddles a step.
    const bool starts_tile = live && (p.prompt ? r == run || (p.kv_len[r] - 1) % nodes_per_tile == 0
                                               : (r - run) % nodes_per_tile == 0);
    const int tiles = mla_block_scan(starts_tile ? 1 : 0, tile_carry, MlaAdd{}, warp_totals);
    if (r < p.num_rows) ws.tile_of_row[r] = live ? tiles - 1 : -1;
    if (starts_tile) ws.tiles[tiles - 1].first_row = r;
  }
  __syncthreads();
  return tile_carry;
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
__device__ MlaTile mla_make_tile(const MlaAttentionParams& p, const MlaWorkspace& ws,
                                 const MlaChunkTable& table, int nodes_per_tile, int t) {
  MlaTile tile = {};
  tile.first_row = ws.tiles[t].first_row;
  tile.seq = p.seq_of_row[tile.first_row];
  int kv_begin = 1 << 30, end = 0;
#pragma unroll
  for (int i = 0; i < kMlaMaxNodes; i++) {
    const int r = tile.first_row + i;
    if (i >= nodes_per_tile || r >= p.num_rows || ws.tile_of_row[r] != t) continue;
    const int kv_len = p.kv_len[r];
    tile.num_nodes++;
    kv_begin = min(kv_begin, kv_len);
    tile.kv_end = max(tile.kv_end, kv_len);
    end = max(end, kv_len + p.path_len[r]);
  }
  tile.log2_steps =
      mla_log2_steps(table, p.kv_len[tile.first_row] + p.path_len[tile.first_row] - 1);
  tile.full_steps = kv_begin / kMlaStepPositions;
  // As far as these rows know: a position that a row of this step holds is new.
  tile.old_steps = max(kv_begin - 1, 0) / kMlaStepPositions;
  tile.last_step = (end + kMlaStepPositions - 1) / kMlaStepPositions - 1;
  tile.num_chunks = max(tile.last_step, 0) / (1 << tile.log2_steps) + 1;
  tile.first_pass = tile.first_row * ws.passes_per_row;
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
};

// The cut with the shortest longest fragment whose fragments fit into `rounds` fragments a CTA. One
// warp.
__device__ MlaChoice mla_search_cut(const MlaGroup* groups, int num_groups, int rounds, bool join,
                                    int num_ctas, int max_slots) {
  const int lane = threadIdx.x % 32;
  int low = 0, high = kMlaUncut;  // high is not known to fit
  while (high - low > 1) {
    const MlaCut cut = {(low + high) / 2, join};
    int fragments = 0, slots = 0;
    for (int i = lane; i < num_groups; i += 32) {
      const int parts = mla_parts(groups[i], cut);
      fragments += groups[i].size * parts;
      slots += groups[i].size * parts * mla_part_slots(groups[i], cut, parts);
    }
    const bool fits =
        mla_warp_sum(fragments) <= rounds * num_ctas && mla_warp_sum(slots) <= max_slots;
    (fits ? high : low) = cut.steps;
  }
  int longest = 0;
  for (int i = lane; i < num_groups; i += 32) {
    const int chunks = mla_cut_chunks(groups[i], {high, join});
    const int parts = mla_parts(groups[i], {high, join});
    const int joined = chunks < groups[i].chunks ? kMlaJoinedSteps : 0;
    longest = max(longest, (mla_longest_part(chunks, parts) << groups[i].log2_steps) + joined);
  }
  longest = __reduce_max_sync(~0u, longest);
  return {{high, join}, high < kMlaUncut ? rounds * (longest + kMlaFixedSteps) : 1 << 30};
}

__device__ __forceinline__ bool mla_same_group(const MlaTile& a, const MlaTile& b) {
  return a.seq == b.seq && a.log2_steps == b.log2_steps;
}

// Finds the groups and the cut of each. Leaves the groups' fields in their first tiles.
__device__ MlaCut mla_choose_cut(const MlaWorkspace& ws, int num_tiles, int num_ctas, int max_slots,
                                 bool prompt, int* warp_totals) {
  __shared__ MlaGroup groups[kMlaMaxCutTiles];
  __shared__ MlaChoice choices[2 * kMlaMaxRounds];
  const bool cut = !prompt && num_tiles <= min(kMlaMaxCutTiles, kMlaMaxRounds * num_ctas);
  int num_groups = 0;
  for (int base = 0; base < num_tiles; base += blockDim.x) {
    const int t = base + threadIdx.x;
    const bool leads =
        t < num_tiles && (prompt || t == 0 || !mla_same_group(ws.tiles[t - 1], ws.tiles[t]));
    MlaGroup group = {};
    if (leads) {
      const MlaTile& first = ws.tiles[t];
      group.log2_steps = first.log2_steps;
      int last_step = 0, old_steps = first.old_steps;
      do {
        MlaTile& tile = ws.tiles[t + group.size];
        group.chunks = max(group.chunks, tile.num_chunks);
        last_step = max(last_step, tile.last_step);
        old_steps = min(old_steps, tile.old_steps);
        tile.group_index = group.size++;
      } while (!prompt && t + group.size < num_tiles &&
               mla_same_group(first, ws.tiles[t + group.size]));
      group.whole_chunks =
          max(1, (last_step + 1 + ((1 << group.log2_steps) - 1) / 2) >> group.log2_steps);
      for (int u = t - 1; !prompt && u >= 0 && ws.tiles[u].seq == first.seq; u--)
        old_steps = min(old_steps, ws.tiles[u].old_steps);
      for (int u = t + group.size; !prompt && u < num_tiles && ws.tiles[u].seq == first.seq; u++)
        old_steps = min(old_steps, ws.tiles[u].old_steps);
      ws.tiles[t].group_size = group.size;
      ws.tiles[t].group_chunks = group.chunks;
      ws.tiles[t].cut_chunks = group.whole_chunks;
      ws.tiles[t].old_steps = old_steps;
    }
    const int index = mla_block_scan(leads ? 1 : 0, num_groups, MlaAdd{}, warp_totals) - 1;
    if (leads && cut) groups[index] = group;
  }
  __syncthreads();
  if (!cut) return {kMlaUncut, false};
  const int warp = threadIdx.x / 32;
  if (warp < 2 * kMlaMaxRounds) {
    const MlaChoice choice =
        mla_search_cut(groups, num_groups, warp / 2 + 1, warp % 2 == 1, num_ctas, max_slots);
    if (threadIdx.x % 32 == 0) choices[warp] = choice;
  }
  __syncthreads();
  MlaChoice best = choices[0];
  for (int r = 1; r < 2 * kMlaMaxRounds; r++)
    if (choices[r].cost < best.cost) best = choices[r];
  return best.cost < 1 << 30 ? best.cut : MlaCut{kMlaUncut, false};
}

// Whether the only tile is a single token with few keys, whose chunks clusters do.
__device__ __forceinline__ bool mla_single_token(const MlaWorkspace& ws, int num_tiles) {
  return num_tiles == 1 && ws.tiles[0].in_table && 1 << ws.tiles[0].log2_steps <= kMlaTurnSteps &&
         ws.tiles[0].group_chunks <= kMlaSingleChunks;
}

// One block. Packs rows into tiles and cuts tiles into fragments. `clustered`: the CTAs are.
__global__ void __launch_bounds__(kMlaPlanThreads)
    mla_plan_tiles(MlaAttentionParams p, MlaWorkspace ws, MlaChunkTable table, int nodes_per_tile,
                   int num_ctas, int max_slots, bool clustered) {
  __shared__ int warp_totals[kMlaPlanThreads / 32];
  const int num_tiles = mla_pack_rows(p, ws, table, nodes_per_tile, warp_totals);
  for (int t = threadIdx.x; t < num_tiles; t += blockDim.x)
    ws.tiles[t] = mla_make_tile(p, ws, table, nodes_per_tile, t);
  __syncthreads();
  MlaCut cut = mla_choose_cut(ws, num_tiles, num_ctas, max_slots, p.prompt, warp_totals);
  const bool single_token = clustered && mla_single_token(ws, num_tiles);
  if (single_token) cut = {1, false};  // one chunk per fragment
  int num_fragments = 0, num_slots = 0;
  for (int base = 0; base < num_tiles; base += blockDim.x) {
    const int t = base + threadIdx.x;
    const bool leads = t < num_tiles && ws.tiles[t].group_index == 0;
    int parts = 0, size = 0, slots = 0, chunks = 0, old_steps = 0;
    if (leads) {
      const MlaTile& tile = ws.tiles[t];
      const MlaGroup group = {tile.group_size, tile.group_chunks, tile.log2_steps, tile.cut_chunks};
      size = group.size;
      old_steps = tile.old_steps;
      chunks = mla_cut_chunks(group, cut);
      parts = mla_parts(group, cut);
      slots = cut.steps == kMlaUncut ? 0 : mla_part_slots(group, cut, parts);
    }
    const int first_fragment =
        mla_block_scan(size * parts, num_fragments, MlaAdd{}, warp_totals) - size * parts;
    const int first_slot = mla_block_scan(size * parts * slots, num_slots, MlaAdd{}, warp_totals) -
                           size * parts * slots;
    for (int i = 0; i < size; i++) {
      MlaTile& tile = ws.tiles[t + i];
      tile.group_size = size, tile.cut_chunks = chunks, tile.parts = parts;
      tile.first_fragment = first_fragment, tile.first_slot = first_slot;
      tile.fragment_slots = slots, tile.old_steps = old_steps;
    }
  }
  if (threadIdx.x == 0) *ws.header = {num_tiles, num_fragments, single_token};
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int t = threadIdx.x / 32; t < num_tiles; t += blockDim.x / 32) {
    const MlaTile tile = ws.tiles[t];
    for (int part = lane; part < tile.parts; part += 32) {
      const int index = part * tile.group_size + tile.group_index;
      MlaFragment f = {};
      f.chunk_begin = mla_part_begin(tile, part);
      f.chunk_end = mla_part_begin(tile, part + 1);
      f.slot = cut.steps == kMlaUncut ? -1 : tile.first_slot + index * tile.fragment_slots;
      f.tile = tile;
      ws.fragments[tile.first_fragment + index] = f;
    }
  }
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
    const unsigned same = __match_any_sync(~0u, from_path ? slots[i] << 2 | lane / 8 : -1 - lane);
    const int leader = __ffs(same) - 1;
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

// One warp per tile. Steps that need more than 64 listed keys are split by nodes.
__global__ void mla_plan_passes(MlaAttentionParams p, MlaWorkspace ws) {
  const int t = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (t >= ws.header->num_tiles) return;
  const MlaTile tile = ws.tiles[t];
  if (tile.in_table) return;
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
  if (threadIdx.x % 32 == 0) ws.tiles[t].num_passes = count;
  for (int part = threadIdx.x % 32; part < tile.parts; part += 32)
    ws.fragments[tile.first_fragment + part * tile.group_size + tile.group_index].tile.num_passes =
        count;
}

}  // namespace coppice::kernels
