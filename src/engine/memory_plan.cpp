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

// Of one rank: heads are split, the latent of MLA is whole on each.
std::int64_t token_bytes(const ModelConfig& c, DType dtype, std::int64_t num_ranks) {
  const std::int64_t row = c.architecture == Architecture::kDeepseek
                               ? c.kv_lora_rank + c.qk_rope_head_dim
                               : 2 * c.num_key_value_heads * c.head_dim / num_ranks;
  return c.num_hidden_layers * row * static_cast<std::int64_t>(size_of(dtype));
}

// Of bf16 weights that every rank has: embedding, router, q_a and kv_a.
std::int64_t whole_weights(const ModelConfig& c) {
  const bool is_mla = c.architecture == Architecture::kDeepseek;
  const std::int64_t low_rank = is_mla ? c.q_lora_rank + c.kv_lora_rank + c.qk_rope_head_dim : 0;
  return 2 * c.hidden_size * (c.vocab_size + c.num_hidden_layers * (low_rank + c.n_routed_experts));
}

std::int64_t rank_weights(std::int64_t all, std::int64_t whole, std::int64_t num_ranks) {
  return num_ranks == 1 ? all : whole + (all - whole) / num_ranks;
}

}  // namespace

std::string MemoryPlan::describe() const {
  return "weights " + gib(weights) + ", drafter " + gib(drafter_weights) + ", cache " + gib(cache) +
         ", drafter's cache " + gib(drafter_cache) + ", logits " + gib(logits) +
         ", workspace and graphs " + gib(workspace) + ": " + gib(total()) + " GiB";
}

MemoryDemand memory_demand(const EngineConfig& config, DType kv_dtype) {
  const ModelConfig model = load_model_config(config.model);
  const std::int64_t ranks = config.tensor_parallel_size;
  MemoryDemand demand = {
      .weights = rank_weights(check_loadable(config.model), whole_weights(model), ranks),
      .token_bytes = token_bytes(model, kv_dtype, ranks),
      .vocab_size = model.vocab_size,
      .max_model_len = effective_model_len(config, model)};
  if (config.speculative_model.empty()) return demand;
  const DflashConfig drafter = load_dflash_config(config.speculative_model);
  demand.drafter_weights = rank_weights(check_loadable(config.speculative_model), 0, ranks);
  demand.drafter_token_bytes = token_bytes(drafter.network, kv_dtype, ranks);
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
  const std::int64_t one = demand.max_model_len + kSpareBlocks * kBlockSize;
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
