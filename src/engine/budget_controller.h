// How many draft nodes each sequence may grow in the next round. Never changes the output, only its
// speed. Numbers only: knows no device and no clock.
//
// auto: a node pays if its probability exceeds (ms of one more row) x (tokens per ms). The cost of
// a round by its rows is learnt from measured rounds; probabilities are corrected by measured over
// predicted acceptance at each depth. When no tree beats plain decoding, drafting pauses, with a
// rare probe round.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine_config.h"
#include "engine/row_buckets.h"

namespace coppice {

// What a controller must know of one decoding sequence.
struct BudgetDemand {
  std::int64_t place = 0;
  std::int64_t setting = kAutoBudget;  // the request's or the engine's: auto, 0 or a number
  std::int64_t tokens_left = 0;        // until max_tokens
};

struct RoundBudgets {
  bool drafting = false;              // some sequence may grow a tree
  bool cut_by_cost = false;           // trees are cut to the best bucket of the cost table
  std::int64_t max_rows = 0;          // rows of the verify step, padding included
  std::vector<std::int32_t> budgets;  // [batch]; 0 in idle places
  std::vector<float> min_scores;      // [batch]
};

// One sequence of a finished round: predicted and measured acceptance by depth.
struct DepthOutcome {
  std::span<const float> predicted;  // [max_depth + 1]: sum of exp(score) of the nodes at a depth
  std::int64_t accepted_depth = 0;   // accepted nodes
};

class BudgetController {
 public:
  BudgetController(const SpeculativeConfig& config, std::int64_t max_depth, std::int64_t max_rows);

  RoundBudgets plan(std::span<const BudgetDemand> demands, std::int64_t batch);

  std::vector<float> cost_ms() const;      // [kNumRowBuckets], drafting included; never falls
  std::vector<float> calibration() const;  // [max_depth + 1]

  // A measured round. verify_ms is everything but drafting.
  void observe_cost(std::int64_t rows, bool drafted, double draft_ms, double verify_ms);
  void observe_outcome(const DepthOutcome& outcome);
  void observe_tokens(std::int64_t num_sequences, std::int64_t num_tokens, bool drafted);

  // Predicted ms of a verify step, drafting excluded; 0 before anything was measured.
  double verify_ms(std::int64_t rows) const;

 private:
  struct Average {
    double value = 0;
    std::int64_t count = 0;
    void add(double sample, std::int64_t window);
  };

  bool drafting_pays(std::int64_t num_sequences) const;
  bool auto_drafts(std::int64_t num_sequences);
  std::size_t bucket_of(std::int64_t rows) const;

  SpeculativeConfig config_;
  std::int64_t max_depth_, max_rows_;
  std::vector<Average> bucket_ms_;
  Average draft_ms_;
  Average drafted_round_ms_;                        // drafting and verifying
  Average tokens_per_round_;                        // of a sequence, when drafting
  std::vector<double> predicted_at_, accepted_at_;  // [max_depth + 1], decayed sums
  bool paused_ = false;
  std::int64_t paused_rounds_ = 0;
};

}  // namespace coppice
