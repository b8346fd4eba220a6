// The controller in worlds with known costs and acceptance: automatic budgets must keep up with the
// best fixed one and with plain decoding, whatever the hardware.
#include "engine/budget_controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "backend/cpu/ops.h"
#include "tests/spec/support/host_tensors.h"

namespace coppice {
namespace {

using testing::HostTensors;
using testing::make_trees;

constexpr std::int64_t kDepth = 7;
constexpr std::int64_t kMaxNodes = 64;

struct World {
  std::string name;
  std::function<double(std::int64_t rows)> verify_ms;
  double draft_ms = 0.3;
  double sharpness = 0.7;    // probability of the likeliest token of a slot
  double calibration = 1.0;  // true over claimed probability
  std::int64_t batch = 1;
};

// Plays rounds of one world with real tree building and cutting; returns tokens per ms.
class Player {
 public:
  Player(const World& world, std::int64_t budget)
      : world_(world),
        controller_({.method = SpeculativeMethod::kDdtree,
                     .ddtree_budget = budget,
                     .max_ddtree_budget = kMaxNodes},
                    kDepth, 512),
        budget_(budget) {
    for (std::int64_t rows = 1; rows <= 512; rows *= 2)
      controller_.observe_cost(rows, false, 0, world.verify_ms(rows));
  }

  double play(int warm_up, int rounds) {
    double ms = 0, tokens = 0;
    for (int i = 0; i < warm_up + rounds; ++i) {
      const auto [round_ms, round_tokens] = play_round();
      if (i < warm_up) continue;
      ms += round_ms;
      tokens += static_cast<double>(round_tokens);
    }
    return tokens / ms;
  }

 private:
  struct Draft {
    std::vector<float> log_probs;         // [kDepth, kMaxNodes]
    std::vector<std::int32_t> true_rank;  // [kDepth]; -1: none of them
  };

  // A slot's probabilities fall geometrically; the truth is drawn from them, scaled.
  Draft draw_draft() {
    Draft draft;
    for (std::int64_t d = 0; d < kDepth; ++d) {
      const double top =
          std::clamp(world_.sharpness + std::normal_distribution<>(0, 0.2)(rng_), 0.05, 0.98);
      double p = top, draw = std::uniform_real_distribution<>(0, 1)(rng_) / world_.calibration;
      std::int32_t truth = -1;
      for (std::int32_t r = 0; r < kMaxNodes; ++r) {
        draft.log_probs.push_back(static_cast<float>(std::log(p)));
        if (truth < 0 && draw < p) truth = r;
        draw -= p;
        p *= 1 - top;
      }
      draft.true_rank.push_back(truth);
    }
    return draft;
  }

  std::pair<double, std::int64_t> play_round() {
    const std::int64_t batch = world_.batch;
    std::vector<BudgetDemand> demands;
    for (std::int64_t b = 0; b < batch; ++b)
      demands.push_back({.place = b, .setting = budget_, .tokens_left = 1000});
    const RoundBudgets plan = controller_.plan(demands, batch);
    HostTensors pool;
    std::vector<Draft> drafts;
    std::vector<float> log_probs;
    std::vector<std::int32_t> ids;
    for (std::int64_t b = 0; b < batch; ++b) {
      drafts.push_back(draw_draft());
      log_probs.insert(log_probs.end(), drafts.back().log_probs.begin(),
                       drafts.back().log_probs.end());
      for (std::int64_t i = 0; i < kDepth * kMaxNodes; ++i)
        ids.push_back(static_cast<std::int32_t>(i % kMaxNodes));
    }
    CompileTreeArgs compile;
    compile.trees = make_trees(pool, batch, kMaxNodes);
    cpu::build_tree({.ids = pool.of<std::int32_t>({batch, kDepth, kMaxNodes}, ids),
                     .log_probs = pool.of<float>({batch, kDepth, kMaxNodes}, log_probs),
                     .anchors = pool.make<std::int32_t>({batch}, 1),
                     .budgets = pool.of<std::int32_t>({batch}, plan.budgets),
                     .min_scores = pool.of<float>({batch}, plan.min_scores),
                     .trees = compile.trees},
                    threads_);
    compile.context_len = pool.make<std::int32_t>({batch});
    compile.block_tables = pool.make<std::int32_t>({batch, 4});
    if (plan.cut_by_cost) {
      compile.cost_ms = pool.of<float>({kNumRowBuckets}, controller_.cost_ms());
      compile.bucket_rows =
          pool.of<std::int32_t>({kNumRowBuckets}, {kRowBuckets.begin(), kRowBuckets.end()});
      compile.calibration = pool.of<float>({kDepth + 1}, controller_.calibration());
    }
    for (Tensor* tensor :
         {&compile.token_ids, &compile.positions, &compile.slots, &compile.seq_of_row,
          &compile.node_of_row, &compile.kv_len, &compile.path_len})
      *tensor = pool.make<std::int32_t>({plan.max_rows});
    compile.path = pool.make<std::int32_t>({plan.max_rows, kDepth + 1});
    compile.row_offsets = pool.make<std::int32_t>({batch + 1});
    cpu::compile_tree(compile, threads_);
    const std::int64_t rows = compile.row_offsets.data<std::int32_t>()[batch];
    std::int64_t tokens = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      tokens += judge(compile.trees, b, drafts[static_cast<std::size_t>(b)], plan.drafting);
    const double draft_ms = plan.drafting ? world_.draft_ms : 0;
    controller_.observe_cost(rows, plan.drafting, draft_ms, world_.verify_ms(rows));
    controller_.observe_tokens(batch, tokens, plan.drafting);
    return {draft_ms + world_.verify_ms(rows), tokens};
  }

  // Tokens a sequence gains: the accepted nodes and the bonus.
  std::int64_t judge(const TreeBuffers& trees, std::int64_t b, const Draft& draft, bool drafting) {
    const std::int32_t count = trees.counts.data<std::int32_t>()[b];
    std::vector<float> predicted(kDepth + 1, 0.0f);
    for (std::int32_t n = 1; n <= count; ++n)
      predicted[static_cast<std::size_t>(trees.depths.row<std::int32_t>(b)[n])] +=
          std::exp(trees.scores.row<float>(b)[n]);
    std::int32_t node = 0;
    std::int64_t accepted = 0;
    for (std::int32_t n = 1; n <= count; ++n) {
      if (trees.parents.row<std::int32_t>(b)[n] != node) continue;
      if (trees.tokens.row<std::int32_t>(b)[n] !=
          draft.true_rank[static_cast<std::size_t>(accepted)])
        continue;
      node = n;
      ++accepted;
    }
    if (drafting) controller_.observe_outcome({.predicted = predicted, .accepted_depth = accepted});
    return accepted + 1;
  }

  World world_;
  BudgetController controller_;
  std::int64_t budget_;
  std::mt19937 rng_{42};
  ThreadPool threads_{1};
};

double staircase(std::int64_t rows) {
  return 4.0 + 1.5 * static_cast<double>((rows + 7) / 8);
}
// Experts: the first rows add much, later ones share.
double expert_union(std::int64_t rows) {
  return 1.0 + 4.0 * (1 - std::pow(0.97, static_cast<double>(rows)));
}

const std::vector<World> kWorlds = {
    {.name = "free rows", .verify_ms = [](std::int64_t r) { return 5 + 0.002 * double(r); }},
    {.name = "dear rows", .verify_ms = [](std::int64_t r) { return 1.0 * double(r); }},
    {.name = "middling rows", .verify_ms = [](std::int64_t r) { return 2 + 0.15 * double(r); }},
    {.name = "staircase", .verify_ms = staircase},
    {.name = "expert union", .verify_ms = expert_union},
    {.name = "bad drafter",
     .verify_ms = [](std::int64_t r) { return 2 + 0.15 * double(r); },
     .sharpness = 0.3},
    {.name = "boastful drafter",
     .verify_ms = [](std::int64_t r) { return 2 + 0.15 * double(r); },
     .calibration = 0.5},
    {.name = "useless drafter",
     .verify_ms = [](std::int64_t r) { return 2 + 0.15 * double(r); },
     .draft_ms = 1.5,
     .calibration = 0.05},
    {.name = "batch of 8", .verify_ms = expert_union, .batch = 8},
    {.name = "batch of 8, dear",
     .verify_ms = [](std::int64_t r) { return 1 + 0.5 * double(r); },
     .draft_ms = 1.0,
     .batch = 8},
};

TEST(BudgetControllerTest, AutoKeepsUpWithTheBestFixedBudget) {
  for (const World& world : kWorlds) {
    double best = 0;
    std::int64_t best_budget = 0;
    for (const std::int64_t budget : {0, 2, 4, 7, 12, 16, 24, 32, 64}) {
      const double rate = Player(world, budget).play(0, 400);
      if (rate > best) best = rate, best_budget = budget;
    }
    const double automatic = Player(world, kAutoBudget).play(200, 800);
    EXPECT_GT(automatic, 0.96 * best) << world.name << ": the best fixed budget is " << best_budget;
  }
}

TEST(BudgetControllerTest, FixedAndZeroBudgetsAreObeyed) {
  BudgetController controller({.method = SpeculativeMethod::kDdtree, .max_ddtree_budget = 20},
                              kDepth, 30);
  const std::vector<BudgetDemand> demands = {{.place = 0, .setting = 16, .tokens_left = 9},
                                             {.place = 2, .setting = 0, .tokens_left = 9},
                                             {.place = 3, .setting = 99, .tokens_left = 1},
                                             {.place = 4, .setting = 99, .tokens_left = 2}};
  const RoundBudgets plan = controller.plan(demands, 5);
  EXPECT_EQ(plan.budgets, (std::vector<std::int32_t>{16, 0, 0, 0, 20}));
  EXPECT_TRUE(plan.drafting);
  EXPECT_FALSE(plan.cut_by_cost);
  EXPECT_EQ(plan.max_rows, 30);  // of 40: cut to fit
}

TEST(BudgetControllerTest, AStandingClockTeachesNothing) {
  BudgetController controller({.method = SpeculativeMethod::kDdtree}, kDepth, 100);
  controller.observe_cost(4, true, 0, 0);
  EXPECT_EQ(controller.verify_ms(4), 0);
  const auto plan = controller.plan(std::vector<BudgetDemand>{{.tokens_left = 50}}, 1);
  EXPECT_EQ(plan.budgets[0], 64);
  EXPECT_FALSE(plan.cut_by_cost);
}

TEST(BudgetControllerTest, CostsNeverFallWithRows) {
  BudgetController controller({.method = SpeculativeMethod::kDdtree}, kDepth, 100);
  controller.observe_cost(1, false, 0, 2.0);
  controller.observe_cost(8, false, 0, 1.0);  // noise
  controller.observe_cost(64, false, 0, 9.0);
  const std::vector<float> costs = controller.cost_ms();
  EXPECT_TRUE(std::is_sorted(costs.begin(), costs.end()));
  EXPECT_GT(controller.verify_ms(128), 9.0);
}

}  // namespace
}  // namespace coppice
