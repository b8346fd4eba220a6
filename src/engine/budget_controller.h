// How many draft nodes each sequence may grow in the next round. Never changes the output, only its
// speed. Numbers only: knows no device and no clock.
//
// auto: a node pays if its probability exceeds (ms of one more row) x (tokens per ms). The cost of
// a round by its rows is learnt from measured rounds; probabilities are corrected by measured over
// predicted acceptance at each depth. Whether drafting pays at all is a matter of an account: what
// drafted rounds save or lose against plain ones, and a small allowance for every round. Drafting
// pauses when the account is empty and is tried again when the allowance has filled it a little, so
// that the time lost against plain decoding is bounded whatever the drafter does.
#pragma once

#include <array>
#include <cstdint>
#include <map>
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
  bool automatic = false;             // only the account decided about drafting
  bool cut_by_cost = false;           // trees are cut to the best bucket of the cost table
  std::int64_t max_rows = 0;          // rows of the verify step, padding included
  std::vector<std::int32_t> budgets;  // [batch]; 0 in idle places
  std::vector<float> min_scores;      // [batch]
};

// What a round took and brought.
struct RoundCost {
  std::int64_t num_sequences = 0;
  std::int64_t num_tokens = 0;  // of all sequences
  std::int64_t rows = 0;        // of the verify step, padding included
  bool drafted = false;
  bool automatic = false;  // as planned
  double draft_ms = 0;
  double verify_ms = 0;  // everything but drafting
};

// One sequence of a finished round: predicted and measured acceptance by depth.
struct DepthOutcome {
  std::span<const float> predicted;  // [max_depth + 1]: sum of exp(score) of the nodes at a depth
  std::int64_t accepted_depth = 0;   // accepted nodes
};

class BudgetController {
 public:
  BudgetController(const SpeculativeConfig& config, std::int64_t max_depth, std::int64_t max_rows);

  // num_behind: tokens whose features the drafter has not taken in yet; it must before it drafts.
  RoundBudgets plan(std::span<const BudgetDemand> demands, std::int64_t batch,
                    std::int64_t num_behind = 0);

  // Of the number of sequences last planned for; drafting included; never falls. [kNumRowBuckets]
  std::vector<float> cost_ms() const;
  std::vector<float> calibration() const;  // [max_depth + 1]

  // Predicted ms of a round without drafts, of the number of sequences last planned for; 0 before
  // anything was measured.
  double plain_round_ms() const;

  // A verify step timed before any round, without what else a round does.
  void expect_cost(std::int64_t rows, double verify_ms);
  // A drafted round's outcomes come first, then the round.
  void observe_outcome(const DepthOutcome& outcome);
  void observe_round(const RoundCost& cost);
  // A round of `limit` rows whose cut kept so many of them: where a round costs its limit, the next
  // one's follows what was kept.
  void observe_cut(std::int64_t kept_rows, std::int64_t limit);
  // The drafter took in so many tokens' features after a pause.
  void observe_catch_up(std::int64_t num_tokens, double ms);

  // Predicted ms of a verify step, drafting excluded; 0 before anything was measured.
  double verify_ms(std::int64_t rows) const;

 private:
  // A mean that moves slowly. One outlier cannot move it far: the second sample replaces a far
  // dearer first one (which may have captured a graph), later ones count at most twice the mean.
  struct Average {
    double value = 0;
    std::int64_t count = 0;
    void add(double sample, std::int64_t window);
  };
  // Steps of one size: what was expected before any round and what rounds took.
  struct Step {
    double expected_ms = 0;
    Average measured;
  };
  // What is known of rounds with so many sequences.
  struct Account {
    bool drafting = true;
    double balance = 0;            // in plain rounds
    std::int64_t since_plain = 0;  // drafted rounds since the last plain one
    Average plain_ms, draft_ms;
    Average tokens;  // of a sequence in a drafted round
    Average speed;   // of drafted rounds, over plain ones
  };

  bool auto_drafts(Account& account, std::int64_t num_sequences, std::int64_t num_behind) const;
  Account& account_of(std::int64_t num_sequences);
  double trust() const;  // accepted over claimed, of late
  double growth_threshold(const Account& account, std::int64_t num_sequences) const;
  double plain_ms(const Account& account, std::int64_t num_sequences) const;
  double bucket_ms(std::size_t bucket) const;
  std::size_t bucket_of(std::int64_t rows) const;

  SpeculativeConfig config_;
  std::int64_t max_depth_, max_rows_;
  std::array<Step, kNumRowBuckets> steps_;
  std::map<std::int64_t, Account> accounts_;
  std::int64_t num_sequences_ = 1;             // last planned for
  double behind_ms_ = 0;                       // to take in one token's features
  std::int64_t row_limit_ = 0;                 // of rounds cut by cost; 0: none
  std::int64_t times_full_ = 0;                // rounds since that filled it
  std::array<std::int64_t, 8> recent_rows_{};  // that cuts kept
  std::size_t num_cuts_ = 0;
  double claimed_ = 0;  // nodes' probabilities in the round whose outcomes are coming in
  double claimed_sum_ = 0, accepted_sum_ = 0;       // decayed
  std::vector<double> predicted_at_, accepted_at_;  // [max_depth + 1], decayed sums
};

}  // namespace coppice
