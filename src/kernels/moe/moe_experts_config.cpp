#include "kernels/moe/moe_experts_config.h"

#include <algorithm>

#include "kernels/moe/expert_blob.h"

namespace coppice::kernels {

namespace {

size_t list_bytes(int num_pairs, int num_experts, int max_units) {
  const size_t histogram = size_t{kStepCells} * num_experts * 2;
  return size_t(max_units) * 8 + size_t(num_pairs) * 2 + histogram + 9 * 8 + 64;
}

}  // namespace

int moe_max_units(int num_pairs, int num_experts, int columns) {
  // Every expert may end in one partly filled unit; no unit is empty.
  return std::min(num_pairs, num_experts) + num_pairs / (8 * columns);
}

MoeExpertsConfig choose_moe_experts_config(int num_tokens, int top_k, int num_experts,
                                           size_t max_shared_bytes) {
  MoeExpertsConfig config;
  const int num_pairs = num_tokens * top_k;
  const int rows_per_expert = (num_pairs + num_experts - 1) / num_experts;
  config.columns = num_tokens <= 8 ? 1 : rows_per_expert <= 12 ? 2 : 4;
  config.tiles = num_tokens <= 96 && config.columns <= 2 ? 1 : config.columns == 2 ? 4 : 2;
  config.max_units = moe_max_units(num_pairs, num_experts, config.columns);
  const size_t reduction = size_t{2} * kStepCells * config.tiles * 2 * 512;
  const size_t fixed = reduction + list_bytes(num_pairs, num_experts, config.max_units);
  const size_t stage =
      size_t(kStepBytes) * config.tiles * (config.tiles == 1 ? kMoeStageSteps<1> : kMoeStageSteps<4>) + 2 * sizeof(long long);
  config.stages = static_cast<int>((max_shared_bytes - fixed) / stage);
  config.shared_bytes = fixed + config.stages * stage;
  return config;
}

}  // namespace coppice::kernels
