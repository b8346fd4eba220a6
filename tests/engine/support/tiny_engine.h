// Engines over the shipped tiny-k2, and requests run to their end.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/factory/make_backend.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "model/load_model.h"
#include "tests/support/eventually.h"
#include "tests/support/golden_file.h"

namespace coppice::testing {

// COPPICE_TEST_DEVICE runs the engine's tests on another device.
inline std::string test_device() {
  const char* const device = std::getenv("COPPICE_TEST_DEVICE");
  return device == nullptr ? "cpu" : device;
}

// Why this machine or build cannot run them; empty when it can.
inline std::string why_no_device() {
  try {
    make_backend({.device = test_device()});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return error.what();
  }
  return {};
}

struct TinyOptions {
  std::string model = kTinyK2;
  std::string device = test_device();
  int num_threads = 1;
  SpeculativeConfig speculative = {};
  std::int64_t max_num_seqs = 4;
  std::int64_t max_num_batched_tokens = 256;
  std::int64_t max_model_len = 2048;
  std::int64_t num_kv_blocks = 0;
  bool enable_prefix_caching = false;
  bool prefix_cache_exact = false;
  std::int64_t max_rounds_ahead = -1;
  std::function<std::unique_ptr<Drafter>(Backend&)> make_drafter = {};
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> wrap_backend = {};
  std::int64_t tensor_parallel_size = 1;
  // With several ranks, in place of wrap_backend: runs on each rank's thread.
  std::function<std::unique_ptr<Backend>(std::int64_t rank, std::unique_ptr<Backend>)> wrap_rank =
      {};
};

inline SpeculativeConfig plain() {
  return {.method = SpeculativeMethod::kNone};
}
inline SpeculativeConfig chain() {
  return {.method = SpeculativeMethod::kChain};
}
inline SpeculativeConfig tree(std::int64_t budget) {
  return {.method = SpeculativeMethod::kDdtree, .ddtree_budget = budget};
}
inline SpeculativeConfig ngram() {
  return {.method = SpeculativeMethod::kNgram};
}

// A clock that nobody advances: the engine must not need time.
inline const StillClock kStillClock;

inline EngineParts tiny_parts(const TinyOptions& options, std::int64_t rank,
                              Communicator* communicator) {
  EngineParts parts;
  parts.clock = &kStillClock;
  parts.backend = make_backend(
      {.device = options.device, .num_threads = options.num_threads, .communicator = communicator});
  if (options.wrap_backend) parts.backend = options.wrap_backend(std::move(parts.backend));
  if (options.wrap_rank) parts.backend = options.wrap_rank(rank, std::move(parts.backend));
  const ModelOptions model_options{.max_rows = 512,
                                   .max_positions = options.max_model_len,
                                   .parallel = {rank, options.tensor_parallel_size}};
  parts.model = load_model(*parts.backend, options.model, model_options);
  parts.drafter_model =
      load_dflash_model(*parts.backend, kTinyK2Dflash, *parts.model, model_options);
  parts.make_drafter = options.make_drafter;
  return parts;
}

inline std::unique_ptr<Engine> make_tiny_engine(const TinyOptions& options) {
  EngineConfig config;
  config.speculative = options.speculative;
  config.max_num_seqs = options.max_num_seqs;
  config.max_num_batched_tokens = options.max_num_batched_tokens;
  config.max_model_len = options.max_model_len;
  config.num_kv_blocks = options.num_kv_blocks;
  config.enable_prefix_caching = options.enable_prefix_caching;
  config.prefix_cache_exact = options.prefix_cache_exact;
  config.max_rounds_ahead = options.max_rounds_ahead;
  if (options.tensor_parallel_size == 1)
    return std::make_unique<Engine>(config, tiny_parts(options, 0, nullptr));
  const auto threads = std::make_shared<RankThreads>(options.tensor_parallel_size, kPatience);
  std::vector<EngineParts> ranks(static_cast<std::size_t>(options.tensor_parallel_size));
  threads->run([&](std::int64_t rank) {
    ranks[static_cast<std::size_t>(rank)] = tiny_parts(options, rank, &threads->communicator(rank));
  });
  EngineParts parts = std::move(ranks.front());
  parts.peers.assign(std::make_move_iterator(ranks.begin() + 1),
                     std::make_move_iterator(ranks.end()));
  parts.threads = threads;
  return std::make_unique<Engine>(config, std::move(parts));
}

struct Finished {
  std::vector<std::int32_t> tokens;
  std::vector<TokenLogprob> logprobs;
  std::vector<std::int64_t> tokens_per_output;
  EndReason end_reason = EndReason::kNone;
  std::optional<std::int32_t> stop_token_id;
  RequestStats stats;
};

// Adds a request whose outputs gather in `into`, which must outlive it.
inline RequestId add(Engine& engine, Request request, Finished& into) {
  return engine.add_request(std::move(request), [&into](const RequestOutput& output) {
    into.tokens.insert(into.tokens.end(), output.token_ids.begin(), output.token_ids.end());
    into.logprobs.insert(into.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
    into.tokens_per_output.push_back(std::ssize(output.token_ids));
    into.end_reason = output.end_reason;
    into.stop_token_id = output.stop_token_id;
    into.stats = *output.stats;
  });
}

inline Finished run(Engine& engine, Request request) {
  Finished result;
  add(engine, std::move(request), result);
  while (engine.step()) {
  }
  return result;
}

inline Request greedy(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  Request request{.prompt_token_ids = std::move(prompt)};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  return request;
}

inline std::vector<std::int32_t> golden_prompt(const std::string& name) {
  const GoldenFile golden(name);
  const auto ids = golden.ints("token_ids");
  return {ids.begin(), ids.end()};
}

}  // namespace coppice::testing
