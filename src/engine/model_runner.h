// Owns the networks, their caches and every device buffer, and runs steps on them.
#pragma once

#include <memory>

#include "engine/batch_builder.h"
#include "engine/budget_controller.h"
#include "engine/decode_round.h"
#include "engine/engine.h"

namespace coppice {

// Fills the masks of a prefill step, one row a sampling sequence, by place.
using PrefillMaskSource = std::function<void(std::span<std::int32_t> masks)>;

// Not thread-safe: used by the thread that enqueues, the engine's or that of the rank.
class ModelRunner {
 public:
  ModelRunner(const EngineConfig& config, EngineParts parts, std::int64_t max_model_len);

  // Chunks of one provenance. Afterwards results() tell the first tokens of the chunks that sample.
  // fill_masks is called with options.masked. No round may be in flight.
  void prefill(std::span<const PrefillChunk> chunks, Provenance provenance, std::int64_t batch,
               const SampleOptions& options, const PrefillMaskSource& fill_masks);
  // Of the scored rows of the last prefill step, chunk by chunk: log-probability of the prompt
  // token behind each and its kMaxLogprobs best alternatives.
  const std::vector<TokenLogprob>& prompt_scores() const { return prompt_scores_; }
  // Enqueues a round and returns its number.
  std::int64_t launch(const RoundShape& shape, const RoundBudgets& budgets,
                      const BudgetController& controller);
  // Waits for a round; results() are its own from then on.
  void finish(std::int64_t round);
  // The sequences that round graphs are captured for: places may be empty.
  std::int64_t batch_bucket(std::int64_t batch) const;
  // Runs the round once with every place empty, so that its graph is captured.
  void capture(const RoundShape& shape);

  // Tokens whose features the drafter has not taken in, and that work: before it drafts (decode
  // expects it done), and before the blocks of any of them change hands.
  std::int64_t num_behind() const { return backlog_ ? backlog_->size() : 0; }
  double catch_up();  // milliseconds
  // Instead, where no sequence goes on and no block is kept.
  void forget_behind() {
    if (backlog_) backlog_->drop();
  }

  // Milliseconds of one verify step of so many rows, on free cache blocks; the median of a few.
  double measure_verify_ms(std::int64_t rows);

  // Rebuilds drafter and buffers; only while no sequence has a place.
  void set_speculative(const SpeculativeConfig& speculative);

  BatchBuilder& places() { return *batch_builder_; }
  bool has_results() const { return results_ != nullptr; }
  const RoundResults& results() const { return *results_; }
  const DecodeRound& round() const { return *round_; }
  const Verifier::Choices& prefill_choices() const { return prefill_choices_; }
  Backend& backend() const { return *parts_.backend; }
  const Model& model() const { return *parts_.model; }
  const Drafter& drafter() const { return *drafter_; }
  const PagedKvCache& cache() const { return *cache_; }
  bool has_drafter_model() const { return parts_.drafter_model != nullptr; }
  std::int64_t num_blocks() const { return cache_->num_blocks(); }
  std::int64_t max_nodes() const { return buffers_->sizes().max_nodes; }
  std::int64_t max_verify_rows() const { return buffers_->sizes().max_verify_rows; }
  std::int64_t max_path() const { return buffers_->sizes().max_path; }
  // Cache positions past the computed ones that two rounds may touch.
  std::int64_t reserve() const;

 private:
  std::int64_t choose_num_blocks() const;
  void score_prompt(const BatchBuilder::PrefillRows& rows, std::int64_t batch);
  ForwardBatch lone_rows(std::int64_t rows);
  std::unique_ptr<Drafter> make_drafter(const SpeculativeConfig& speculative);
  std::int64_t max_nodes_of(const SpeculativeConfig& speculative) const;
  // With the drafter made.
  RoundSizes sizes_of(const SpeculativeConfig& speculative) const;

  EngineConfig config_;
  EngineParts parts_;
  std::int64_t max_model_len_;
  std::unique_ptr<PagedKvCache> cache_, drafter_cache_;
  std::unique_ptr<Drafter> drafter_, no_drafter_;
  std::unique_ptr<SamplingState> sampling_;
  std::unique_ptr<RoundBuffers> buffers_;
  std::unique_ptr<ContextBacklog> backlog_;  // with a drafter network
  std::unique_ptr<Verifier> verifier_;
  std::unique_ptr<BatchBuilder> batch_builder_;
  std::unique_ptr<DecodeRound> round_;
  const RoundResults* results_ = nullptr;  // of the last step that was waited for
  Verifier::Choices prefill_choices_;
  std::vector<TokenLogprob> prompt_scores_;
};

}  // namespace coppice
