// One batch of sequences that decodes round after round on random networks: what the engine keeps
// for a batch, without requests, scheduler or prefill.
#pragma once

#include "benchmark/random_network.h"
#include "engine/context_backlog.h"
#include "engine/round_buffers.h"
#include "sampling/sampling_state.h"
#include "spec/drafter.h"
#include "spec/verifier.h"

namespace coppice {

struct RoundPoint {
  std::int64_t context = 0;
  std::int64_t batch = 1;
  std::int64_t rows = 1;  // of the verify step; the same for every sequence

  std::int64_t budget() const { return rows / batch - 1; }  // nodes of a tree without its root
  bool drafting() const { return budget() > 0; }
};

// Cache positions that rounds of one point may add: repeats times the longest path, and a tree.
inline constexpr std::int64_t kRoundSlack = 1024;

class BenchRound {
 public:
  // `drafter_model` may be null when no point drafts. `meter` fills the caches. With
  // `context_features` [rows, feature_size] commits put features there: how fast a product reads
  // its rows depends on where they lie, by a fifth.
  BenchRound(Backend& backend, DeviceMeter& meter, Model& model, DflashModel* drafter_model,
             const Tensor& context_features, const RoundPoint& point);

  // Enqueues the five verbs.
  void run();
  // The sequences are as long as at first.
  void reset();
  // Enqueues the copy of what the last round found, as the engine does; its number.
  std::int64_t start_results() { return buffers_.start_results(false); }
  void finish_results(std::int64_t step) { buffers_.finish_results(step); }
  // Rows of the last round's verify step that were not padding; waits.
  std::int64_t rows_used();
  // Tokens that the last commit settled, a sequence; waits.
  double committed_tokens();

 private:
  Backend& backend_;
  RoundPoint point_;
  std::int64_t num_blocks_;
  PagedKvCache cache_;
  std::unique_ptr<PagedKvCache> drafter_cache_;
  DflashModel* drafter_model_;
  std::unique_ptr<Drafter> drafter_;
  SamplingState sampling_;
  RoundBuffers buffers_;
  std::unique_ptr<ContextBacklog> backlog_;  // with a drafter: as in the engine, but never filled
  Verifier verifier_;
  Verifier::Choices choices_;
};

}  // namespace coppice
