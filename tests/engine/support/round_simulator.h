// Decode rounds of a world whose costs and acceptance are known, under real budgets, tree building
// and cutting. Every policy sees the same text: what the drafter proposes at a position, and
// whether it is right, depends on the position alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/op_args.h"
#include "base/thread_pool.h"
#include "engine/budget_controller.h"

namespace coppice::testing {

inline constexpr std::int64_t kSimulatedDepth = 7;
inline constexpr std::int64_t kSimulatedNodes = 32;

struct World {
  std::string name;
  std::function<double(std::int64_t rows)> verify_ms;
  double draft_ms = 0.3;
  // Probability of the likeliest token of a slot, by position of the text.
  std::function<double(std::int64_t position)> sharpness = [](std::int64_t) { return 0.7; };
  double calibration = 1.0;  // true over claimed probability
  std::int64_t batch = 1;
  double expected = 1.0;     // what the start-up measured, over the truth
  double surplus_ms = 0.0;   // of a round, that the start-up did not see
  double noise = 0.0;        // of measured times, with rare outliers
  double catch_up_ms = 0.0;  // per token generated while drafting paused
};

// What a planted fault does to a plan.
using PlanFault = std::function<void(RoundBudgets& plan, std::int64_t round)>;

class RoundSimulator {
 public:
  RoundSimulator(const World& world, std::int64_t budget, PlanFault fault = {});

  struct Total {
    double ms = 0;
    std::int64_t tokens = 0;
    std::int64_t drafted_rounds = 0;
  };
  Total play_rounds(std::int64_t rounds);
  // Milliseconds for so many tokens.
  double play_tokens(std::int64_t tokens);

 private:
  struct Draft {
    std::vector<float> log_probs;         // [depth, nodes]
    std::vector<std::int32_t> true_rank;  // [depth]; -1: none of them
  };
  Draft draft_at(std::int64_t sequence, std::int64_t position) const;
  double measured(double ms);
  void play_round(Total& total);
  std::vector<std::int64_t> play_plan(const RoundBudgets& plan, std::int64_t& rows);
  std::int64_t judge(const TreeBuffers& trees, std::int64_t b, const Draft& draft, bool drafting);

  World world_;
  BudgetController controller_;
  std::int64_t budget_;
  PlanFault fault_;
  std::vector<std::int64_t> positions_;
  std::int64_t round_ = 0, num_behind_ = 0;
  std::uint64_t noise_state_ = 1;
  ThreadPool threads_{1};
};

}  // namespace coppice::testing
