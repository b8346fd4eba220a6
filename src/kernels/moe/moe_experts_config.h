// Tile choice of moe_experts: pure host arithmetic. No choice here can change a result bit.
#pragma once

#include <cstddef>

namespace coppice::kernels {

struct MoeExpertsConfig {
  int tiles = 1;      // blocks of rows that one work item takes at once
  int columns = 1;    // most n8 column tiles of a unit
  int unit_rows = 1;  // most rows of a unit, at most 8 * columns
  int blocks_per_sm = 1;
  int stages = 0;       // of the ring
  int stage_bytes = 0;  // weights, then inputs
  int max_units = 0;
  size_t shared_bytes = 0;
};

// Above this, rows always take the wide form (moe_wide.h).
inline constexpr int kMoeNarrowMaxTokens = 2048;

// With more rows an expert in the mean, units have a third column tile.
inline constexpr int kMoeThreeColumnsRows = 11;

// Column tiles of a unit for so many rows: 1, or 2 and more.
constexpr int moe_experts_columns(int num_tokens) {
  return num_tokens <= 96 ? 1 : 2;
}

// Steps (of every tile) that one ring stage holds.
template <int kTiles>
inline constexpr int kMoeStageSteps = kTiles == 1 ? 2 : 1;

// `one_wave`: gate and up of the whole call are at most one item for each SM.
MoeExpertsConfig choose_moe_experts_config(int num_tokens, int top_k, int num_experts,
                                           bool one_wave, size_t max_shared_bytes,
                                           size_t sm_shared_bytes);

// Upper bound of the number of units that any routing of this size needs.
int moe_max_units(int num_pairs, int num_experts, int unit_rows);

}  // namespace coppice::kernels
