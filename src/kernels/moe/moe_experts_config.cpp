#include "kernels/moe/moe_experts_config.h"

#include <algorithm>

#include "kernels/moe/expert_blob.h"

namespace coppice::kernels {

namespace {

// Units, sorted pairs, totals and claims; the scratch of the work list lies in the ring, which is
// empty then.
size_t list_bytes(int num_pairs, int max_units) {
  return size_t(max_units) * 8 + size_t(num_pairs) * 2 + (9 + 4 + 8 + 2) * 8;
}

size_t list_scratch_bytes(int num_pairs, int num_experts) {
  return size_t{kStepCells} * num_experts * 2 + size_t(num_pairs) * 2;
}

}  // namespace

int moe_max_units(int num_pairs, int num_experts, int unit_rows) {
  // Every expert may end in one partly filled unit; no unit is empty.
  return std::min(num_pairs, num_experts) + num_pairs / unit_rows;
}

MoeExpertsConfig choose_moe_experts_config(int num_tokens, int top_k, int num_experts,
                                           bool one_wave, size_t max_shared_bytes,
                                           size_t sm_shared_bytes) {
  MoeExpertsConfig config;
  const int num_pairs = num_tokens * top_k;
  // Measured on H200, docs/results/moe-h200.md. With few rows per expert two blocks per SM hide
  // each other's latency, unless there is not even work for one; with more, tall items share the
  // conversion of inputs and need the registers.
  config.columns = moe_experts_columns(num_tokens);
  if (config.columns == 1) {
    config.tiles = num_tokens <= 8 ? 1 : 2;
    config.blocks_per_sm = one_wave && config.tiles == 1 ? 1 : 2;
  } else {
    config.tiles = 4;
    if (num_pairs > kMoeThreeColumnsRows * num_experts) config.columns = 3;
  }
  if (config.blocks_per_sm > 1) {
    // Each block also takes 1 KB that the system reserves.
    max_shared_bytes = std::min(max_shared_bytes, sm_shared_bytes / config.blocks_per_sm - 1024);
  }
  config.unit_rows = std::min(num_tokens, 8 * config.columns);
  config.max_units = moe_max_units(num_pairs, num_experts, config.unit_rows);
  const int steps = config.tiles == 1 ? kMoeStageSteps<1> : kMoeStageSteps<4>;
  const size_t inputs =
      size_t(config.unit_rows) * (size_t(steps) * kStepCells * kCellInputs * 2 + 64);
  config.stage_bytes =
      static_cast<int>((size_t(kStepBytes) * config.tiles * steps + inputs + 127) / 128 * 128);
  const size_t sums = size_t{2} * kStepCells * 2 * 512;
  const size_t fixed = sums + list_bytes(num_pairs, config.max_units);
  const size_t stage = config.stage_bytes + 3 * sizeof(uint64_t);
  config.stages = static_cast<int>((max_shared_bytes - fixed) / stage);
  if (size_t(config.stages) * config.stage_bytes < list_scratch_bytes(num_pairs, num_experts)) {
    config.stages = 0;  // more experts than any model has
  }
  config.shared_bytes = fixed + config.stages * stage;
  return config;
}

}  // namespace coppice::kernels
