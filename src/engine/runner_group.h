// The model runners of all tensor-parallel ranks, driven in step: every rank makes the same calls
// from the same host values, and ranks meet in the collectives inside. What comes back is read from
// rank 0; that all ranks emitted the same tokens is checked after each step.
#pragma once

#include <memory>
#include <vector>

#include "engine/model_runner.h"

namespace coppice {

// Not thread-safe: used by the engine's thread, which is rank 0's. Functions are those of
// ModelRunner and throw Error(kUnavailable) naming the rank when one fails; none works after that.
class RunnerGroup {
 public:
  RunnerGroup(const EngineConfig& config, EngineParts parts, std::int64_t max_model_len);
  ~RunnerGroup();
  RunnerGroup(const RunnerGroup&) = delete;
  RunnerGroup& operator=(const RunnerGroup&) = delete;

  std::int64_t num_ranks() const { return std::ssize(runners_); }
  // Rank 0's, to read.
  const ModelRunner& first() const { return *runners_.front(); }

  void prefill(std::span<const PrefillChunk> chunks, Provenance provenance, std::int64_t batch,
               const SampleOptions& options, const PrefillMaskSource& fill_masks);
  std::int64_t launch(const RoundShape& shape, const RoundBudgets& budgets,
                      const BudgetController& controller);
  void finish(std::int64_t round);
  void capture(const RoundShape& shape);
  void synchronize();

  double catch_up();
  void forget_behind();
  double measure_verify_ms(std::int64_t rows);
  void set_speculative(const SpeculativeConfig& speculative);

  // Makes every device's place equal to the sequence, if it is not.
  void sync_place(Sequence& sequence);
  // The sequence at the place leaves it: its features are taken in and nothing decodes there.
  // Nothing once a rank has failed.
  void vacate(std::int64_t place);
  void start_decoding(const Sequence& sequence);

 private:
  template <typename Body>
  void on_all(const Body& body);
  bool has_failed() const;
  void share_masks(std::int64_t rank, std::span<std::int32_t> masks);
  void check_agreement();

  std::shared_ptr<RankThreads> threads_;               // null: one rank
  bool only_rank_failed_ = false;                      // without threads_
  std::vector<std::unique_ptr<ModelRunner>> runners_;  // [rank]
};

}  // namespace coppice
