// The work list of one step: rows packed into tiles, the steps that hold undecided positions
// resolved into tail passes, and the chunks of all tiles dealt to CTAs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/mla/mla_attention.h"
#include "kernels/mla/mla_attention_config.h"

namespace coppice::kernels {

constexpr int kMlaMaxNodes = 8;          // tokens of one tile
constexpr uint8_t kMlaMasked = 0x80;     // flag in MlaTailPass::column
constexpr uint8_t kMlaFromTable = 0x40;  // flag in MlaTailPass::column

struct MlaHeader {
  int32_t num_tiles;
  int32_t num_chunks;  // over all tiles
};

// Consecutive rows of one sequence that share a chunk size.
struct MlaTile {
  int32_t seq;
  int32_t first_row;
  int32_t num_nodes;
  int32_t log2_steps;  // steps per chunk
  int32_t num_chunks;  // up to the largest position of the tile
  int32_t full_steps;  // steps whose 64 positions every row reads through the table
  int32_t last_step;   // step of the largest position
  int32_t kv_end;      // largest kv_len
  int32_t first_pass;
  int32_t num_passes;
  int32_t chunk_begin;  // chunks of all earlier tiles
  int32_t first_cta;    // CTA that owns the tile's first chunk
};

// A CTA's run of chunks, in tile order.
struct MlaCta {
  int32_t tile;
  int32_t chunk;
  int32_t count;
  int32_t begin;  // the same start, counted over all tiles
  MlaTile first;  // a copy of the first tile, saves a dependent load
};

// One step of up to 8 nodes (a multiple of 16 bytes) in which some position is undecided or
// invisible for some row. The distinct undecided keys of the nodes form a list of at most 64 slots.
struct MlaTailPass {
  int32_t step;
  int32_t node_begin;
  int32_t node_end;
  int32_t num_listed;      // keys of the list
  int32_t num_from_table;  // leading positions of the step that are read through the table
  int32_t unused[3];
  int32_t slot[kMlaStepPositions];
  // Where a node's key at a position is found: index into the list, or kMlaFromTable + position.
  // Masked positions carry kMlaMasked and any loaded key.
  uint8_t column[kMlaMaxNodes][kMlaStepPositions];
};

struct MlaWorkspace {
  MlaHeader* header;
  MlaCta* ctas;
  MlaTile* tiles;
  int32_t* tile_of_row;
  MlaTailPass* passes;
  float2* slot_stats;  // [slot][warpgroup][64 rows]: maximum, sum; both copies are equal
  uint4* slots;        // [slot][octet of rows][unit of 512] x 8 halves
  int passes_per_row;
};

inline MlaWorkspace mla_workspace(void* base, const MlaWorkspaceLayout& layout) {
  char* p = static_cast<char*>(base);
  return {reinterpret_cast<MlaHeader*>(p + layout.header),
          reinterpret_cast<MlaCta*>(p + layout.ctas),
          reinterpret_cast<MlaTile*>(p + layout.tiles),
          reinterpret_cast<int32_t*>(p + layout.tile_of_row),
          reinterpret_cast<MlaTailPass*>(p + layout.passes),
          reinterpret_cast<float2*>(p + layout.slot_stats),
          reinterpret_cast<uint4*>(p + layout.slots),
          layout.passes_per_row};
}

__device__ __forceinline__ int mla_log2_steps(const MlaChunkTable& table, int position) {
  return position < table.until[0]   ? table.log2_steps[0]
         : position < table.until[1] ? table.log2_steps[1]
         : position < table.until[2] ? table.log2_steps[2]
                                     : table.log2_steps[3];
}

constexpr int kMlaPlanThreads = 1024;

// Inclusive scan over the block; `carry` holds the result of earlier blocks of rows and is updated.
template <class Op>
__device__ int mla_block_scan(int value, int& carry, Op op, int* warp_totals) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value = op(other, value);
  }
  __syncthreads();
  if (lane == 31) warp_totals[warp] = value;
  __syncthreads();
  int before = carry;
  for (int w = 0; w < warp; w++) before = op(before, warp_totals[w]);
  int all = carry;
  for (int w = 0; w < kMlaPlanThreads / 32; w++) all = op(all, warp_totals[w]);
  carry = all;
  return op(before, value);
}

// One block. Packs rows into tiles and deals chunks to CTAs.
__global__ void __launch_bounds__(kMlaPlanThreads)
    mla_plan_tiles(MlaAttentionParams p, MlaWorkspace ws, MlaChunkTable table, int nodes_per_tile,
                   int num_ctas) {
  __shared__ int warp_totals[kMlaPlanThreads / 32];
  const auto add = [](int a, int b) { return a + b; };
  const auto max = [](int a, int b) { return a > b ? a : b; };
  int run_carry = -1, tile_carry = 0;
  for (int base = 0; base < p.num_rows; base += kMlaPlanThreads) {
    const int r = base + threadIdx.x;
    const bool live = r < p.num_rows && p.seq_of_row[r] >= 0;
    bool starts_run = live;
    if (live && r > 0 && p.seq_of_row[r - 1] == p.seq_of_row[r]) {
      const int position = p.kv_len[r] + p.path_len[r] - 1;
      const int previous = p.kv_len[r - 1] + p.path_len[r - 1] - 1;
      starts_run = mla_log2_steps(table, position) != mla_log2_steps(table, previous) ||
                   abs(p.kv_len[r] - p.kv_len[r - 1]) > 1;
    }
    const int run = mla_block_scan(starts_run ? r : -1, run_carry, max, warp_totals);
    const bool starts_tile = live && (r - run) % nodes_per_tile == 0;
    const int tiles = mla_block_scan(starts_tile ? 1 : 0, tile_carry, add, warp_totals);
    if (r < p.num_rows) ws.tile_of_row[r] = live ? tiles - 1 : -1;
    if (starts_tile) ws.tiles[tiles - 1].first_row = r;
  }
  __syncthreads();
  const int num_tiles = tile_carry;
  int chunk_carry = 0;
  for (int base = 0; base < num_tiles; base += kMlaPlanThreads) {
    const int t = base + threadIdx.x;
    MlaTile tile = {};
    if (t < num_tiles) {
      tile.first_row = ws.tiles[t].first_row;
      tile.seq = p.seq_of_row[tile.first_row];
      int kv_begin = 1 << 30, end = 0;
      for (int r = tile.first_row; r < p.num_rows && ws.tile_of_row[r] == t; r++) {
        tile.num_nodes++;
        kv_begin = min(kv_begin, p.kv_len[r]);
        tile.kv_end = max(tile.kv_end, p.kv_len[r]);
        end = max(end, p.kv_len[r] + p.path_len[r]);
      }
      tile.log2_steps =
          mla_log2_steps(table, p.kv_len[tile.first_row] + p.path_len[tile.first_row] - 1);
      tile.full_steps = kv_begin / kMlaStepPositions;
      tile.last_step = (end + kMlaStepPositions - 1) / kMlaStepPositions - 1;
      tile.num_chunks = max(tile.last_step, 0) / (1 << tile.log2_steps) + 1;
      tile.first_pass = tile.first_row * ws.passes_per_row;
    }
    const int inclusive = mla_block_scan(tile.num_chunks, chunk_carry, add, warp_totals);
    tile.chunk_begin = inclusive - tile.num_chunks;
    if (t < num_tiles) ws.tiles[t] = tile;
  }
  __syncthreads();
  const int64_t num_chunks = chunk_carry;
  if (threadIdx.x == 0) *ws.header = {num_tiles, chunk_carry};
  for (int i = threadIdx.x; i < num_ctas; i += kMlaPlanThreads) {
    MlaCta cta = {};
    cta.begin = static_cast<int>(i * num_chunks / num_ctas);
    cta.count = static_cast<int>((i + 1) * num_chunks / num_ctas) - cta.begin;
    int low = 0, high = num_tiles;  // last tile with chunk_begin <= begin
    while (high - low > 1) {
      const int mid = (low + high) / 2;
      (ws.tiles[mid].chunk_begin <= cta.begin ? low : high) = mid;
    }
    cta.tile = low;
    cta.chunk = num_tiles > 0 ? cta.begin - ws.tiles[low].chunk_begin : 0;
    cta.first = ws.tiles[low];
    ws.ctas[i] = cta;
  }
  for (int t = threadIdx.x; t < num_tiles; t += kMlaPlanThreads) {
    // The CTA i with i * n / g <= c < (i + 1) * n / g.
    const int64_t c = ws.tiles[t].chunk_begin;
    ws.tiles[t].first_cta = static_cast<int>(((c + 1) * num_ctas - 1) / num_chunks);
  }
}

// Resolves one step for nodes [begin, end) of a tile; returns false if they need more than 64
// listed keys. One warp; lane = (node % 8) + 8 * (position % 4).
__device__ bool mla_resolve_pass(const MlaAttentionParams& p, const MlaTile& tile, int step,
                                 int begin, int end, MlaTailPass* pass) {
  const int lane = threadIdx.x % 32, node = lane % 8;
  const int row = tile.first_row + node;
  const bool in_pass = node >= begin && node < end;
  const int kv_len = in_pass ? p.kv_len[row] : 0;
  const int length = in_pass ? kv_len + p.path_len[row] : 0;
  int listed = 0, any_column = kMlaMasked;
  for (int i = 0; i < kMlaStepPositions; i += 4) {
    const int column = i + lane / 8, position = step * kMlaStepPositions + column;
    const bool from_path = position >= kv_len && position < length;
    const int slot =
        from_path ? p.path[static_cast<int64_t>(row) * p.max_path + position - kv_len] : -1;
    // Equal slots at the same position share a place in the list; the lowest lane speaks for them.
    const int key = from_path ? (slot << 2 | lane / 8) : -1 - lane;
    const unsigned same = __match_any_sync(~0u, key);
    const int leader = __ffs(same) - 1;
    const unsigned leaders = __ballot_sync(~0u, from_path && leader == lane);
    const int index = listed + __popc(leaders & ((1u << leader) - 1));
    if (listed + __popc(leaders) > kMlaStepPositions) return false;
    listed += __popc(leaders);
    uint8_t code = kMlaMasked;
    if (position < kv_len) code = static_cast<uint8_t>(kMlaFromTable + column);
    if (from_path) code = static_cast<uint8_t>(index);
    if (code != kMlaMasked) any_column = code;
    pass->column[node][column] = code;
    if (from_path && leader == lane) pass->slot[index] = slot;
  }
  // A loaded key of the same node for its masked positions; nodes outside need none.
  for (int d = 8; d < 32; d *= 2) {
    const int other = __shfl_xor_sync(~0u, any_column, d);
    if (any_column == kMlaMasked) any_column = other;
  }
  for (int i = 0; i < kMlaStepPositions; i += 4) {
    uint8_t& code = pass->column[node][i + lane / 8];
    if (code == kMlaMasked) code = static_cast<uint8_t>(kMlaMasked | any_column);
  }
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
__global__ void mla_plan_passes(MlaAttentionParams p, MlaWorkspace ws, int num_ctas) {
  const int t = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (t >= ws.header->num_tiles) return;
  const MlaTile tile = ws.tiles[t];
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
  // The CTAs that start with this tile keep a copy.
  for (int i = tile.first_cta + threadIdx.x % 32; i < num_ctas && ws.ctas[i].tile <= t; i += 32)
    if (ws.ctas[i].tile == t) ws.ctas[i].first.num_passes = count;
}

}  // namespace coppice::kernels
