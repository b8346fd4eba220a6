// Engine::load: from a configuration to a running engine.
#include <algorithm>

#include "backend/factory/make_backend.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "model/load_model.h"

namespace coppice {
namespace {

const SteadyClock kSteadyClock;

BackendOptions backend_options(const EngineConfig& config, Communicator* communicator) {
  BackendOptions options = {
      .device = config.device, .num_threads = config.num_threads, .communicator = communicator};
  if (communicator == nullptr || config.num_threads < 0) return options;
  const int all = config.num_threads > 0 ? config.num_threads : available_cpus();
  options.num_threads = std::max(1, all / static_cast<int>(communicator->size()));
  return options;
}

ModelOptions model_options(const EngineConfig& config, std::int64_t rank) {
  ModelOptions options;
  options.max_rows =
      std::max({config.max_num_batched_tokens, config.max_verify_rows, config.max_num_seqs});
  options.max_positions = config.max_model_len;
  options.parallel = {.rank = rank, .size = config.tensor_parallel_size};
  options.max_batch = config.max_num_seqs;
  options.draft_window = config.speculative.draft_window_size;
  options.draft_attention_factor = config.speculative.draft_attention_factor;
  return options;
}

// What one rank holds, and the bytes its cache may have: the configured ones where memory is not
// planned.
struct LoadedRank {
  EngineParts parts;
  std::int64_t kv_cache_bytes = 0;
};

LoadedRank load_rank(const EngineConfig& config, std::int64_t rank, Communicator* communicator,
                     const LoadProgress& progress) {
  LoadedRank loaded = {.parts = {}, .kv_cache_bytes = config.kv_cache_bytes};
  EngineParts& parts = loaded.parts;
  parts.clock = &kSteadyClock;
  parts.backend = make_backend(backend_options(config, communicator));
  if (const Backend::Memory memory = parts.backend->memory(); memory.total_bytes > 0) {
    const MemoryPlan plan =
        plan_memory(config, memory_demand(config, parts.backend->kv_dtype()), memory);
    if (config.num_kv_blocks == 0) loaded.kv_cache_bytes = plan.cache + plan.drafter_cache;
    if (rank == 0) log_info("memory: " + plan.describe());
  }
  ModelOptions options = model_options(config, rank);
  parts.model = load_model(*parts.backend, config.model, options, progress);
  // A draft pass has a block for every sequence.
  constexpr std::int64_t kMaxDraftBlock = 32;
  options.max_rows = std::max(options.max_rows, config.max_num_seqs * kMaxDraftBlock);
  if (!config.speculative_model.empty())
    parts.drafter_model = load_dflash_model(*parts.backend, config.speculative_model, *parts.model,
                                            options, progress);
  return loaded;
}

// Every rank on the thread that will drive it; all get the smallest cache of any. What no rank can
// run is said once, beforehand.
LoadedRank load_ranks(const EngineConfig& config, const LoadProgress& progress) {
  const std::int64_t size = config.tensor_parallel_size;
  check_parallel(load_model_config(config.model), {.rank = 0, .size = size});
  if (!config.speculative_model.empty())
    check_parallel(load_dflash_config(config.speculative_model).network, {.rank = 0, .size = size});
  check_rank_devices(config.device, size);
  const auto threads = std::make_shared<RankThreads>(size);
  std::vector<LoadedRank> all(static_cast<std::size_t>(size));
  const auto load = [&](std::int64_t rank) {
    const LoadProgress own = [&, rank](std::int64_t done, std::int64_t total) {
      threads->check();
      if (rank == 0 && progress) progress(done, total);
    };
    all[static_cast<std::size_t>(rank)] =
        load_rank(config, rank, &threads->communicator(rank), own);
  };
  threads->run(load, RankThreads::Patience::kEndless);
  LoadedRank first = std::move(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    first.kv_cache_bytes = std::min(first.kv_cache_bytes, all[rank].kv_cache_bytes);
    first.parts.peers.push_back(std::move(all[rank].parts));
  }
  first.parts.threads = threads;
  return first;
}

}  // namespace

std::unique_ptr<Engine> Engine::load(const EngineConfig& config, const LoadProgress& progress) {
  config.validate();  // before weights are read
  LoadedRank loaded = config.tensor_parallel_size > 1 ? load_ranks(config, progress)
                                                      : load_rank(config, 0, nullptr, progress);
  EngineConfig planned = config;
  planned.kv_cache_bytes = loaded.kv_cache_bytes;
  return std::make_unique<Engine>(planned, std::move(loaded.parts));
}

}  // namespace coppice
