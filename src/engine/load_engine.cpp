// Engine::load: from a configuration to a running engine.
#include "backend/factory/make_backend.h"
#include "base/error.h"
#include "engine/engine.h"
#include "model/load_model.h"

namespace coppice {
namespace {

const SteadyClock kSteadyClock;

void require_positive(const char* field, std::int64_t value) {
  if (value < 1)
    throw Error(ErrorKind::kInvalidArgument,
                std::string(field) + " is " + std::to_string(value) + ": must be at least 1");
}

void check_config(const EngineConfig& config) {
  require_positive("max_num_seqs", config.max_num_seqs);
  require_positive("max_num_batched_tokens", config.max_num_batched_tokens);
  require_positive("max_verify_rows", config.max_verify_rows);
  const SpeculativeConfig& speculative = config.speculative;
  require_positive("max_ddtree_budget", speculative.max_ddtree_budget);
  require_positive("prompt_lookup_min", speculative.prompt_lookup_min);
  if (speculative.prompt_lookup_max < speculative.prompt_lookup_min)
    throw Error(ErrorKind::kInvalidArgument,
                "prompt_lookup_max is " + std::to_string(speculative.prompt_lookup_max) +
                    ": must be at least prompt_lookup_min (" +
                    std::to_string(speculative.prompt_lookup_min) + ")");
  if (speculative.ddtree_budget < kAutoBudget)
    throw Error(ErrorKind::kInvalidArgument, "ddtree_budget is " +
                                                 std::to_string(speculative.ddtree_budget) +
                                                 ": must be at least 0, or -1 for auto");
}

}  // namespace

std::unique_ptr<Engine> Engine::load(const EngineConfig& config, const LoadProgress& progress) {
  check_config(config);
  EngineParts parts;
  parts.clock = &kSteadyClock;
  parts.backend = make_backend({.device = config.device, .num_threads = config.num_threads});
  // A step has as many rows as a prefill chunk or a verify, a draft pass a block for every
  // sequence.
  constexpr std::int64_t kMaxDraftBlock = 32;
  ModelOptions options;
  options.max_rows = std::max({config.max_num_batched_tokens, config.max_verify_rows,
                               config.max_num_seqs * kMaxDraftBlock});
  options.max_positions = config.max_model_len;
  options.max_batch = config.max_num_seqs;
  options.draft_window = config.speculative.draft_window_size;
  parts.model = load_model(*parts.backend, config.model, options, progress);
  if (!config.speculative_model.empty())
    parts.drafter_model = load_dflash_model(*parts.backend, config.speculative_model, *parts.model,
                                            options, progress);
  return std::make_unique<Engine>(config, std::move(parts));
}

}  // namespace coppice
