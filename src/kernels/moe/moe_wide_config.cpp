#include <algorithm>

#include "kernels/moe/moe_experts_config.h"
#include "kernels/moe/moe_wide.h"

namespace coppice::kernels {

namespace {

size_t align_up(size_t bytes) {
  return (bytes + 127) / 128 * 128;
}

}  // namespace

bool moe_wide_pays(int num_tokens, int top_k, int num_experts) {
  return num_tokens * top_k > 17 * num_experts;  // docs/results/moe-h200.md
}

MoeWideConfig choose_moe_wide_config(int num_tokens, int top_k, int num_experts, int sm_count,
                                     size_t max_shared_bytes) {
  MoeWideConfig config;
  const int num_pairs = num_tokens * top_k;
  config.columns = num_pairs > 26 * num_experts ? 64 : kWideFewColumns;
  config.max_units = moe_max_units(num_pairs, num_experts, config.columns);
  const size_t sums = size_t{kWideOutputs} * config.columns * sizeof(float);
  const size_t slots = size_t(moe_wide_block_slots(num_tokens, top_k, sm_count));
  const size_t fixed =
      sums + size_t(config.max_units) * sizeof(MoeWideUnit) + slots * sizeof(MoeWideSlot) + 192;
  const size_t stage = size_t(moe_wide_stage_bytes(config.columns)) + 2 * sizeof(uint64_t);
  if (fixed < max_shared_bytes) {
    config.stages = static_cast<int>(std::min<size_t>((max_shared_bytes - fixed) / stage, 16));
  }
  config.shared_bytes = fixed + config.stages * stage;
  return config;
}

MoeWideLayout moe_wide_layout(int num_tokens, int top_k, int hidden_size, int intermediate_size,
                              int max_units) {
  const size_t pairs = size_t(num_tokens) * top_k;
  const size_t chunks = size_t(hidden_size + kWideOutputs - 1) / kWideOutputs;
  MoeWideLayout at = {};
  at.counter_count = 3 + size_t(max_units) + 2 * chunks;
  size_t end = 0;
  const auto take = [&end](size_t bytes) {
    const size_t begin = end;
    end += align_up(bytes);
    return begin;
  };
  at.counters = take(at.counter_count * sizeof(uint32_t));
  at.units = take(size_t(max_units) * sizeof(MoeWideUnit));
  at.pairs = take(pairs * sizeof(int32_t));
  at.positions = take(pairs * sizeof(int32_t));
  at.x = take(size_t(num_tokens) * hidden_size * 2);
  at.activation = take(pairs * intermediate_size * 2);
  at.partial = take(size_t{kWideBuffers} * pairs * kWideOutputs * sizeof(float));
  at.total = end;
  return at;
}

}  // namespace coppice::kernels
