// What mla_plan leaves in the workspace for the attention kernels: tiles of rows, the fragments
// that CTAs work on, tail passes, and the places of partial results.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/mla/mla_attention.h"
#include "kernels/mla/mla_attention_config.h"
#include "kernels/mla/mla_cut.h"

namespace coppice::kernels {

constexpr int kMlaMaxNodes = 8;          // tokens of one tile
constexpr uint8_t kMlaMasked = 0x80;     // flag in MlaTailPass::column
constexpr uint8_t kMlaFromTable = 0x40;  // flag in MlaTailPass::column

struct MlaHeader {
  int32_t num_tiles;
  int32_t num_fragments;
  int32_t single_token;  // 1: fragments are those of mla_single.cuh
  MlaLine line;          // that all groups lie on
};

// Consecutive rows of one sequence that share a chunk size. The tiles of a sequence form a group
// whose chunks are cut into the same parts, so that tiles read the same keys at the same time.
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
  // On a line: where the group's chunks begin. While the plan looks for a cut, the group's first
  // tile has the group's last step here (mla_find_groups).
  int32_t line_offset;
  int32_t cut_chunks;      // that parts share evenly; the last part has the rest too
  int32_t group_size;      // tiles; until the cut is made, only in the group's first
  int32_t group_index;     // of this tile
  int32_t parts;           // 1: one CTA does the whole tile
  int32_t first_fragment;  // of the group: part 0 of its first tile
  int32_t first_slot;      // of the group's partial results
  int32_t fragment_slots;  // for each fragment
  int32_t in_table;   // one token, whose keys all lie where the block table has their positions
  int32_t old_steps;  // leading steps whose keys the cache had before this step of the model
};

// A run of chunks of one tile, done by one CTA.
struct MlaFragment {
  int32_t chunk_begin;
  int32_t chunk_end;
  int32_t slot;  // the first for its partial results; -1: those of the CTA, nothing is cut
  int32_t unused;
  MlaTile tile;  // a copy, saves a dependent load
};
static_assert(sizeof(MlaTile) == 80 && sizeof(MlaFragment) == 96);  // as the workspace is laid out

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
  MlaFragment* fragments;
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
          reinterpret_cast<MlaFragment*>(p + layout.fragments),
          reinterpret_cast<MlaTile*>(p + layout.tiles),
          reinterpret_cast<int32_t*>(p + layout.tile_of_row),
          reinterpret_cast<MlaTailPass*>(p + layout.passes),
          reinterpret_cast<float2*>(p + layout.slot_stats),
          reinterpret_cast<uint4*>(p + layout.slots),
          layout.passes_per_row};
}

// First chunk of a part of a tile, which may be shorter or longer than what its group's parts
// share.
__device__ __forceinline__ int mla_part_begin(const MlaTile& tile, int part) {
  if (part >= tile.parts) return tile.num_chunks;
  return min(mla_part_begin(tile.cut_chunks, tile.parts, part), tile.num_chunks);
}

// The same where there may be a line.
__device__ __forceinline__ int mla_part_begin(const MlaTile& tile, const MlaLine& line, int part) {
  if (line.teams == 0 || part >= tile.parts) return mla_part_begin(tile, part);
  const int team = mla_line_team(line, tile.line_offset + 1) + part;
  return min(mla_line_begin(line, team, tile.line_offset), tile.num_chunks);
}

// Tiles of a part are neighbours, among fragments as among slots. Parts of a line are their team's,
// in its first turn all but a group's first.
__device__ __forceinline__ int mla_fragment_index(const MlaTile& tile, const MlaLine& line,
                                                  int part) {
  const int first = line.teams == 0 || part == 0
                        ? tile.first_fragment
                        : mla_line_team(line, tile.line_offset + 1) * tile.group_size;
  return first + part * tile.group_size + tile.group_index;
}

__device__ __forceinline__ int mla_part_slot(const MlaTile& tile, int part) {
  return tile.first_slot + (part * tile.group_size + tile.group_index) * tile.fragment_slots;
}

}  // namespace coppice::kernels
