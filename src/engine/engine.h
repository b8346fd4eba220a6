// The engine: requests in, tokens out. One thread calls everything; no clock of its own, no text.
//
//   auto engine = Engine::load(config);
//   engine->add_request({.prompt_token_ids = ids, .sampling = params}, on_output);
//   while (engine->step()) {}
//
// Same request, same seed, same tokens: whatever else runs, with any drafter, tree size, chunk size
// or thread count, preempted or not (docs/exactness.md).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "cache/paged_kv_cache.h"
#include "comm/rank_threads.h"
#include "engine/engine_config.h"
#include "engine/metrics.h"
#include "engine/request.h"
#include "model/dflash_model.h"
#include "spec/draft_tree.h"
#include "spec/drafter.h"

namespace coppice {

// What one decode round did for one sequence.
struct RoundTrace {
  RequestId id = 0;
  std::int64_t position = 0;              // of the anchor
  DraftTree tree;                         // as verified, after the cut
  std::vector<std::int32_t> accepted;     // nodes, root first
  std::span<const std::int32_t> emitted;  // accepted tokens and the bonus
};
using RoundObserver = std::function<void(const RoundTrace&)>;

// Tokens whose keys and logits are now decided: for tests and debugging. Tensors live on the device
// and are valid during the call.
struct CommitTrace {
  RequestId id = 0;
  std::int64_t position = 0;                // of the first row
  std::span<const std::int32_t> token_ids;  // decided tokens, one a row
  std::span<const std::int32_t> slots;      // where their keys lie
  std::span<const std::int32_t> rows;       // their rows in `logits`; -1: no logits were asked for
  Tensor logits;                            // [num_rows, vocab_size] f32
  const PagedKvCache* cache = nullptr;      // the target's
  Backend* backend = nullptr;               // to read them with
};
using CommitObserver = std::function<void(const CommitTrace&)>;

// Ready-made parts, for tests and for callers that load by themselves: of the only rank, or of
// tensor-parallel rank 0 with those of all others in `peers`.
struct EngineParts {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<DflashModel> drafter_model;  // may be null
  const Clock* clock = nullptr;                // outlives the engine
  // Replaces the drafter that the configuration asks for; may be empty.
  std::function<std::unique_ptr<Drafter>(Backend&)> make_drafter;
  std::vector<EngineParts> peers;        // ranks 1, 2, ...
  std::shared_ptr<RankThreads> threads;  // of all ranks; null: one rank
};

// Progress of loading, in bytes of weights.
using LoadProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// Not thread-safe: all calls from one thread. Its own (masks, further ranks) run within calls only.
class Engine {
 public:
  // Loads backend, model and drafter. Throws Error naming the file, field or flag and the cause.
  static std::unique_ptr<Engine> load(const EngineConfig& config,
                                      const LoadProgress& progress = {});
  Engine(const EngineConfig& config, EngineParts parts);
  ~Engine();

  // Throws Error(kInvalidArgument) naming the field. The callback runs once per step that emitted
  // tokens for the request, the last time with an end reason.
  RequestId add_request(Request request, OutputCallback callback);
  // Ends a request as aborted; its blocks are free at return. No callback follows. False if it has
  // already ended.
  bool cancel(RequestId id);
  // Ends a request after its first num_output_tokens: a stop string was found in their text. What
  // follows is dropped and never cached. No callback follows. False if it has already ended; from
  // within the last callback, what follows is still not cached.
  bool finish(RequestId id, std::int64_t num_output_tokens);

  // Takes place and blocks from a running request; it resumes later with the same tokens. False if
  // it does not run.
  bool preempt(RequestId id);

  // Forgets all cached prefixes; requests that run are not touched.
  void reset_prefix_cache();

  // One prefill or decode step. False when there is nothing to do.
  bool step();
  bool has_work() const;

  // Changes the drafting of all later rounds; only while no request runs.
  void set_speculative(const SpeculativeConfig& speculative);
  void set_round_observer(RoundObserver observer);
  void set_commit_observer(CommitObserver observer);

  const EngineMetrics& metrics() const;
  const ModelConfig& model_config() const;
  std::int64_t max_model_len() const;
  // Prompt and output tokens of the largest request that fits: max_model_len, or less if the cache
  // holds less.
  std::int64_t max_request_len() const;
  // The effective mode in one line: backend, method and budget, cache size, limits.
  std::string describe() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice
