// Host choices of the MLA attention kernels: chunk sizes, tile packing, workspace layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice::kernels {

inline constexpr int kMlaStepPositions = 64;  // keys of one softmax step; also the cache block
inline constexpr int kMlaTileRows = 64;       // query rows (nodes x heads) of one tile
inline constexpr int kMlaMaxCutTiles = 528;   // with more tiles each is done by one CTA
inline constexpr int kMlaFewPlanTiles = 32;   // up to so many full ones one kernel plans all
// Partial results set aside, per CTA: the planner cuts tiles no finer than they last. When tiles
// are not cut, a CTA's share holds the merge tree of the tile that it is at.
inline constexpr int kMlaSlotsPerCta = 16;
inline constexpr int kMlaOwnSlots = 9;
// A single row runs in clusters of blocks, which do its chunks at the same time if it has few.
inline constexpr int kMlaClusterBlocks = 2;
inline constexpr int kMlaTurnSteps = 4;      // of a chunk that a cluster does at a time
inline constexpr int kMlaSingleChunks = 36;  // with more, blocks that work alone are faster

// The kernel that merges partial results: an octet of rows is split by columns over blocks; with
// few octets the warps of a block share the octet's chunks (twice as many warps with fewest), with
// many they share the columns as well.
inline constexpr int kMlaCombineWarps = 8;
inline constexpr int kMlaFewestCombineWarps = 16;
inline constexpr int kMlaCombineSplit = 16;  // parts of an octet of rows, 32 columns each
inline constexpr int kMlaFewestOctets = 2;   // up to here larger blocks leave the next kernels room
inline constexpr int kMlaManyOctets = 96;    // from here on the octets alone fill the GPU

// Steps per chunk as a function of the query's own position alone; the result bits follow from it.
struct MlaChunkTable {
  int32_t until[3];       // positions below until[i] use log2_steps[i]
  int32_t log2_steps[4];  // log2 of 64-key steps per chunk
};

MlaChunkTable mla_chunk_table(int num_heads);
// Prompt rows are not cut: one chunk each.
MlaChunkTable mla_prompt_chunk_table();

// Rows of one tile that a token takes: num_heads rounded up to a multiple of 8 dividing 64.
int mla_padded_heads(int num_heads);

// True if the tensor-core kernel covers the shape.
bool mla_uses_tensor_cores(int num_heads, int kv_lora_rank, int qk_rope_head_dim);

// Byte offsets into the workspace.
struct MlaWorkspaceLayout {
  size_t header;
  size_t fragments;
  size_t tiles;
  size_t tile_of_row;
  size_t passes;
  size_t slot_stats;
  size_t slots;
  size_t total;
  int passes_per_row;  // tail passes reserved for each row
};

MlaWorkspaceLayout mla_workspace_layout(int max_rows, int max_path, int num_ctas);

}  // namespace coppice::kernels
