// The controller in worlds with known costs and acceptance: automatic budgets must keep up with the
// best fixed one and with plain decoding, whatever the hardware, the drafter and the clock.
#include "engine/budget_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/engine/support/round_simulator.h"

namespace coppice {
namespace {

using testing::PlanFault;
using testing::RoundSimulator;
using testing::World;

constexpr std::int64_t kDepth = testing::kSimulatedDepth;
constexpr std::int64_t kRounds = 2000;
constexpr double kAllowedLoss = 0.02;

double free_rows(std::int64_t rows) {
  return 5 + 0.002 * static_cast<double>(rows);
}
double dear_rows(std::int64_t rows) {
  return static_cast<double>(rows);
}
double middling_rows(std::int64_t rows) {
  return 2 + 0.15 * static_cast<double>(rows);
}
double staircase(std::int64_t rows) {
  return 4.0 + 1.5 * static_cast<double>((rows + 7) / 8);
}
// Experts: the first rows add much, later ones share.
double expert_union(std::int64_t rows) {
  return 1.0 + 4.0 * (1 - std::pow(0.97, static_cast<double>(rows)));
}
// A memory-bound step until the arithmetic counts.
double convex(std::int64_t rows) {
  return 2.0 + 0.002 * static_cast<double>(rows * rows);
}
// A small model in the processor's cache: tiny-k2 with one thread.
double cached_model(std::int64_t rows) {
  return 0.6 + 0.22 * static_cast<double>(rows);
}
// Sharpness that changes every so many tokens.
std::function<double(std::int64_t)> changing(double first, double second, std::int64_t period) {
  return [=](std::int64_t position) { return position / period % 2 == 0 ? first : second; };
}
std::function<double(std::int64_t)> constant(double sharpness) {
  return [=](std::int64_t) { return sharpness; };
}

const std::vector<World> kWorlds = {
    {.name = "free rows", .verify_ms = free_rows},
    {.name = "dear rows", .verify_ms = dear_rows},
    {.name = "middling rows", .verify_ms = middling_rows},
    {.name = "staircase", .verify_ms = staircase},
    {.name = "expert union", .verify_ms = expert_union},
    {.name = "convex", .verify_ms = convex},
    {.name = "dear drafter", .verify_ms = middling_rows, .draft_ms = 6},
    {.name = "drafter that just does not pay", .verify_ms = middling_rows, .draft_ms = 4.5},
    {.name = "drafter that pays as much as it costs", .verify_ms = middling_rows, .draft_ms = 3.8},
    {.name = "drafter that just pays", .verify_ms = middling_rows, .draft_ms = 3.5},
    {.name = "bad drafter", .verify_ms = middling_rows, .sharpness = constant(0.3)},
    {.name = "good drafter", .verify_ms = middling_rows, .sharpness = constant(0.9)},
    {.name = "boastful drafter", .verify_ms = middling_rows, .calibration = 0.5},
    {.name = "useless drafter", .verify_ms = middling_rows, .draft_ms = 1.5, .calibration = 0.05},
    {.name = "from bad to good",
     .verify_ms = middling_rows,
     .draft_ms = 1,
     .sharpness = changing(0.1, 0.8, 1500)},
    {.name = "bad at first",
     .verify_ms = middling_rows,
     .draft_ms = 1,
     .sharpness = [](std::int64_t position) { return position < 300 ? 0.1 : 0.8; }},
    {.name = "from good to bad",
     .verify_ms = middling_rows,
     .draft_ms = 1,
     .sharpness = changing(0.8, 0.1, 3000)},
    {.name = "now good, now bad",
     .verify_ms = staircase,
     .draft_ms = 2,
     .sharpness = changing(0.8, 0.1, 300)},
    {.name = "batch of 8", .verify_ms = expert_union, .batch = 8},
    {.name = "batch of 8, dear",
     .verify_ms = [](std::int64_t rows) { return 1 + 0.5 * static_cast<double>(rows); },
     .draft_ms = 1.0,
     .batch = 8},
    {.name = "model in the cache",
     .verify_ms = cached_model,
     .draft_ms = 2.5,
     .noise = 0.1,
     .catch_up_ms = 0.02},
    {.name = "start-up saw a third", .verify_ms = middling_rows, .expected = 0.33},
    {.name = "start-up saw threefold", .verify_ms = staircase, .expected = 3},
    {.name = "start-up saw steps, not rounds", .verify_ms = expert_union, .surplus_ms = 1.5},
    {.name = "noisy clock", .verify_ms = expert_union, .noise = 0.3},
    {.name = "noisy clock, dear drafter", .verify_ms = middling_rows, .draft_ms = 5, .noise = 0.3},
};

struct Comparison {
  double loss = 0;  // time of auto over the best other choice's, minus 1
  std::int64_t best_budget = 0;
  std::int64_t drafted_rounds = 0;
};

// Auto from a cold start, over the text that it generates in kRounds rounds.
Comparison compare(const World& world, const PlanFault& fault = {}) {
  const RoundSimulator::Total automatic =
      RoundSimulator(world, kAutoBudget, fault).play_rounds(kRounds);
  double best = std::numeric_limits<double>::infinity();
  Comparison result{.drafted_rounds = automatic.drafted_rounds};
  for (const std::int64_t budget : {0, 1, 2, 4, 7, 11, 15, 23, 32}) {
    const double ms = RoundSimulator(world, budget).play_tokens(automatic.tokens);
    if (ms < best) best = ms, result.best_budget = budget;
  }
  result.loss = automatic.ms / best - 1;
  return result;
}

class BudgetControllerWorldTest : public ::testing::TestWithParam<World> {};

TEST_P(BudgetControllerWorldTest, AutoKeepsUpWithTheBestFixedBudgetAndWithPlainDecoding) {
  const Comparison result = compare(GetParam());
  RecordProperty("loss_percent", std::to_string(100 * result.loss));
  EXPECT_LT(result.loss, kAllowedLoss)
      << "the best fixed budget is " << result.best_budget << "; auto drafted in "
      << result.drafted_rounds << " of " << kRounds << " rounds";
}

INSTANTIATE_TEST_SUITE_P(Worlds, BudgetControllerWorldTest, ::testing::ValuesIn(kWorlds),
                         [](const auto& tested) {
                           std::string name = tested.param.name;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

// Bad rules must lose more than is allowed, or the comparison above proves nothing.
struct BadRule {
  const char* name;
  const char* world;
  PlanFault fault;
};

void forbid_drafting(RoundBudgets& plan) {
  std::fill(plan.budgets.begin(), plan.budgets.end(), 0);
  plan.drafting = plan.cut_by_cost = false;
}
void force_drafting(RoundBudgets& plan) {
  std::fill(plan.budgets.begin(), plan.budgets.end(), testing::kSimulatedNodes);
  plan.drafting = plan.cut_by_cost = true;
  plan.max_rows = 512;
}

const std::vector<BadRule> kBadRules = {
    {"never drafts", "good drafter",
     [](RoundBudgets& plan, std::int64_t) { forbid_drafting(plan); }},
    {"never pauses", "dear drafter",
     [](RoundBudgets& plan, std::int64_t) { force_drafting(plan); }},
    {"tries every 64 rounds", "dear drafter",
     [](RoundBudgets& plan, std::int64_t round) {
       if (round % 64 < 2) force_drafting(plan);
     }},
    {"never tries again", "bad at first",
     [](RoundBudgets& plan, std::int64_t round) {
       if (round > 100) forbid_drafting(plan);
     }},
    {"cuts nothing", "convex", [](RoundBudgets& plan, std::int64_t) { plan.cut_by_cost = false; }},
};

TEST(BudgetControllerTest, BadRulesLoseMoreThanIsAllowed) {
  for (const BadRule& rule : kBadRules) {
    const auto world = std::find_if(kWorlds.begin(), kWorlds.end(),
                                    [&](const World& w) { return w.name == rule.world; });
    ASSERT_NE(world, kWorlds.end()) << rule.world;
    EXPECT_GT(compare(*world, rule.fault).loss, kAllowedLoss) << rule.name;
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
  controller.observe_round({.num_sequences = 4, .num_tokens = 8, .rows = 4, .drafted = true});
  EXPECT_EQ(controller.verify_ms(4), 0);
  const auto plan = controller.plan(std::vector<BudgetDemand>{{.tokens_left = 50}}, 1);
  EXPECT_EQ(plan.budgets[0], 64);
  EXPECT_FALSE(plan.cut_by_cost);
}

// The smallest size alone: others follow from it, and there is none below.
TEST(BudgetControllerTest, OneMeasuredSizeSpeaksForAll) {
  BudgetController controller({.method = SpeculativeMethod::kDdtree}, kDepth, 100);
  controller.observe_round({.num_sequences = 1, .num_tokens = 1, .rows = 1, .verify_ms = 2.0});
  EXPECT_DOUBLE_EQ(controller.verify_ms(1), 2.0);
  EXPECT_DOUBLE_EQ(controller.verify_ms(0), 2.0);
  EXPECT_DOUBLE_EQ(controller.verify_ms(8), 2.0 * (1 + 0.02 * 7));
  BudgetController other({.method = SpeculativeMethod::kDdtree}, kDepth, 100);
  other.observe_round({.num_sequences = 1, .num_tokens = 1, .rows = 8, .verify_ms = 2.28});
  EXPECT_DOUBLE_EQ(other.verify_ms(1), 2.28 / (1 + 0.02 * 7));
}

TEST(BudgetControllerTest, CostsNeverFallWithRows) {
  BudgetController controller({.method = SpeculativeMethod::kDdtree}, kDepth, 100);
  controller.observe_round({.num_sequences = 1, .num_tokens = 1, .rows = 1, .verify_ms = 2.0});
  controller.observe_round(
      {.num_sequences = 1, .num_tokens = 1, .rows = 8, .verify_ms = 1.0});  // noise
  controller.observe_round({.num_sequences = 1, .num_tokens = 1, .rows = 64, .verify_ms = 9.0});
  const std::vector<float> costs = controller.cost_ms();
  EXPECT_TRUE(std::is_sorted(costs.begin(), costs.end()));
  EXPECT_GT(controller.verify_ms(128), 9.0);
}

}  // namespace
}  // namespace coppice
