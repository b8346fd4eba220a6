#include "engine/memory_plan.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "engine/request_limits.h"
#include "model/load_model.h"

namespace coppice {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kWorkspace = kGiB;   // kernels' own memory, activations, modules
constexpr std::int64_t kGraphs = kGiB / 4;  // captured rounds
constexpr std::int64_t kSparePercent = 5;   // of the device, left to others

std::string gib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", static_cast<double>(bytes) / kGiB);
  return text;
}

std::int64_t token_bytes(const ModelConfig& c, DType dtype) {
  const std::int64_t row = c.architecture == Architecture::kDeepseek
                               ? c.kv_lora_rank + c.qk_rope_head_dim
                               : 2 * c.num_key_value_heads * c.head_dim;
  return c.num_hidden_layers * row * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

std::string MemoryPlan::describe() const {
  return "weights " + gib(weights) + ", drafter " + gib(drafter_weights) + ", cache " + gib(cache) +
         ", drafter's cache " + gib(drafter_cache) + ", logits " + gib(logits) +
         ", workspace and graphs " + gib(workspace) + ": " + gib(total()) + " GiB";
}

MemoryDemand memory_demand(const EngineConfig& config, DType kv_dtype) {
  const ModelConfig model = load_model_config(config.model);
  MemoryDemand demand = {.weights = check_loadable(config.model),
                         .token_bytes = token_bytes(model, kv_dtype),
                         .vocab_size = model.vocab_size,
                         .max_model_len = effective_model_len(config, model)};
  if (config.speculative_model.empty()) return demand;
  const DflashConfig drafter = load_dflash_config(config.speculative_model);
  demand.drafter_weights = check_loadable(config.speculative_model);
  demand.drafter_token_bytes = token_bytes(drafter.network, kv_dtype);
  demand.draft_rows = drafter.block_size - 1;
  return demand;
}

MemoryPlan plan_memory(const EngineConfig& config, const MemoryDemand& demand,
                       const Backend::Memory& memory) {
  MemoryPlan plan = {.weights = demand.weights,
                     .drafter_weights = demand.drafter_weights,
                     .logits = (std::max(config.max_verify_rows, config.max_num_seqs) +
                                config.max_num_seqs * demand.draft_rows) *
                               demand.vocab_size * 4,
                     .workspace = kWorkspace + (config.enforce_eager ? 0 : kGraphs)};
  const auto free = static_cast<std::int64_t>(memory.free_bytes);
  const std::int64_t spare = static_cast<std::int64_t>(memory.total_bytes) / 100 * kSparePercent;
  const std::int64_t per_token = demand.token_bytes + demand.drafter_token_bytes;
  const std::int64_t one = demand.max_model_len + 4 * kBlockSize;  // and what rounds run ahead
  std::int64_t tokens = config.num_kv_blocks * kBlockSize;
  if (tokens == 0 && config.kv_cache_bytes > 0) tokens = config.kv_cache_bytes / per_token;
  if (tokens == 0)
    tokens = std::clamp((free - spare - plan.total()) / per_token, one, config.max_num_seqs * one);
  plan.cache = tokens * demand.token_bytes;
  plan.drafter_cache = tokens * demand.drafter_token_bytes;
  if (plan.total() > free - spare)
    throw Error(ErrorKind::kOutOfMemory,
                config.model + ": does not fit: " + plan.describe() + "; " + gib(free) + " of " +
                    gib(static_cast<std::int64_t>(memory.total_bytes)) + " GiB are free and " +
                    gib(spare) +
                    " stay free; lower max_model_len, the cache's size or max_num_seqs");
  return plan;
}

}  // namespace coppice
