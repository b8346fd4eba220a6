// Engine::load: from a configuration to a running engine.
#include "backend/factory/make_backend.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "model/load_model.h"

namespace coppice {
namespace {

const SteadyClock kSteadyClock;

}  // namespace

std::unique_ptr<Engine> Engine::load(const EngineConfig& config, const LoadProgress& progress) {
  config.validate();  // before weights are read
  EngineParts parts;
  parts.clock = &kSteadyClock;
  parts.backend = make_backend({.device = config.device, .num_threads = config.num_threads});
  EngineConfig planned = config;
  if (const Backend::Memory memory = parts.backend->memory(); memory.total_bytes > 0) {
    const MemoryPlan plan =
        plan_memory(config, memory_demand(config, parts.backend->kv_dtype()), memory);
    if (config.num_kv_blocks == 0) planned.kv_cache_bytes = plan.cache + plan.drafter_cache;
    log_info("memory: " + plan.describe());
  }
  // A step has as many rows as a prefill chunk or a verify, a draft pass a block for every
  // sequence.
  constexpr std::int64_t kMaxDraftBlock = 32;
  ModelOptions options;
  options.max_rows =
      std::max({config.max_num_batched_tokens, config.max_verify_rows, config.max_num_seqs});
  options.max_positions = config.max_model_len;
  options.max_batch = config.max_num_seqs;
  options.draft_window = config.speculative.draft_window_size;
  options.draft_attention_factor = config.speculative.draft_attention_factor;
  parts.model = load_model(*parts.backend, config.model, options, progress);
  options.max_rows = std::max(options.max_rows, config.max_num_seqs * kMaxDraftBlock);
  if (!config.speculative_model.empty())
    parts.drafter_model = load_dflash_model(*parts.backend, config.speculative_model, *parts.model,
                                            options, progress);
  return std::make_unique<Engine>(planned, std::move(parts));
}

}  // namespace coppice
