#include "planner/plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/error.h"
#include "tests/planner/support/plans.h"

namespace coppice::testing {
namespace {

const RoundTimes& times() {
  static const RoundTimes shipped(KernelTimes::shipped());
  return shipped;
}

// Kimi K2's INT4 weights with and without room for a cache: as it is served in practice.
const std::map<std::string, std::pair<bool, bool>> kFits = {
    // GPU -> fits on 4, on 8
    {"a100", {false, false}},    {"h100", {false, false}},    {"h200", {false, true}},
    {"b200", {true, true}},      {"b300", {true, true}},      {"gb200", {true, true}},
    {"gb300", {true, true}},     {"rtx5090", {false, false}}, {"rtxpro6000", {false, true}},
    {"rtx4090", {false, false}}, {"mi300x", {true, true}},    {"mi355x", {true, true}}};

void check_fits(PlanRequest request) {
  request.devices = find_devices("all");
  request.batches = {1};
  for (const std::int64_t ranks : {4, 8}) {
    request.num_ranks = ranks;
    const Plan plan = make_plan(request, times());
    ASSERT_EQ(plan.devices.size(), kFits.size());
    for (const DevicePlan& device : plan.devices) {
      const auto& [on_four, on_eight] = kFits.at(std::string(device.device.name));
      EXPECT_EQ(device.memory.fits, ranks == 4 ? on_four : on_eight)
          << ranks << " x " << device.device.name;
    }
    const std::string text = plan_as_text(plan);
    EXPECT_NE(text.find("does not fit"), std::string::npos);
    EXPECT_NE(text.find("  fits"), std::string::npos);
  }
}

TEST(PlanTest, FourAndEightOfEachGpu) {
  check_fits(kimi_request(8));
}

// COPPICE_KIMI_CONFIG names a folder, which must have one then; unset or empty is the usual place.
TEST(PlanTest, ThePublishedConfigurationOfKimiK25) {
  const char* const given = std::getenv("COPPICE_KIMI_CONFIG");
  const bool is_given = given != nullptr && *given != '\0';
  const std::string path = is_given ? given : COPPICE_SOURCE_DIR "/../shared/data/kimi-k2.5";
  if (!is_given && !std::filesystem::exists(path + "/config.json"))
    GTEST_SKIP() << "no " << path << "/config.json (COPPICE_KIMI_CONFIG names another folder)";
  PlanRequest request = kimi_request(8);
  request.target = load_model_config(path);
  check_fits(request);
}

constexpr double kGiB = 1073741824.0;
// Of one of eight ranks of Kimi K2, in bytes: its matrices, with the embedding whole
// (kimi_k2_bytes_test.cpp), and what a token of its cache takes.
constexpr double kRankWeights = 78.24e9, kTokenOfCache = 70'272;

// What is left of 0.92 of an H200 behind the weights, buffers and the runtime, divided by a token.
TEST(PlanTest, CacheOfEightH200) {
  PlanRequest request = kimi_request(8);
  request.drafter_config.reset();
  request.drafter.clear();
  const MemoryPlan memory = make_plan(request, times()).devices[0].memory;
  constexpr double kBuffers = 1.0 * kGiB;          // activations, logits, workspaces, graphs
  constexpr double kRuntime = 1.0e9;               // context 0.6 GB, links 0.4 GB
  constexpr double kUsable = 0.92 * 139.8 * kGiB;  // as the driver reports an H200
  EXPECT_EQ(memory.kv_per_token, kTokenOfCache);
  EXPECT_NEAR(memory.usable, kUsable, 1);
  EXPECT_NEAR(memory.target_weights, kRankWeights, 0.01e9);
  EXPECT_EQ(memory.runtime, kRuntime);
  EXPECT_NEAR(memory.buffers + memory.graphs, kBuffers, 0.1 * kGiB);
  EXPECT_EQ(memory.kv_tokens,
            static_cast<std::int64_t>((memory.usable - memory.taken()) / kTokenOfCache));
  // 0.1 GiB of buffers are 1,500 tokens.
  EXPECT_NEAR(static_cast<double>(memory.kv_tokens),
              (kUsable - kRankWeights - kBuffers - kRuntime) / kTokenOfCache, 2'000);
}

// vLLM's log on eight H200: 46.80 GiB for the cache are 715,072 tokens, by the same formula. That
// it leaves 7 GiB less to the cache than this plan is its share of the memory and its activations,
// of which the log does not tell.
TEST(PlanTest, TokensOfVllmsCache) {
  EXPECT_NEAR(46.80 * kGiB / kTokenOfCache, 715'072, 0.005 * kGiB / kTokenOfCache);
}

TEST(PlanTest, PartsAddUpAndMoreRowsCostMore) {
  PlanRequest request = kimi_request(8, "h200,b200");
  const Plan plan = make_plan(request, times());
  for (const DevicePlan& device : plan.devices)
    for (const PlannedPoint& point : device.points) {
      double before = 0;
      for (const PlannedRound& round : point.rounds) {
        double sum = 0;
        for (const OpTime& part : round.time.parts) sum += part.us();
        EXPECT_NEAR(sum, round.time.total().us(), 1e-6 * sum);
        const double verify = round.time.verify().us();
        EXPECT_GT(verify, 0.97 * before) << device.device.name << " " << round.budget;
        before = verify;
        EXPECT_GE(point.best_round().tokens_per_s(), round.tokens_per_s());
      }
      EXPECT_EQ(point.plain().budget, 0);
      EXPECT_EQ(point.plain().tokens_per_round, 1);
    }
}

TEST(PlanTest, ChangesNeverMakeARoundSlower) {
  const Plan plan = make_plan(kimi_request(8), times());
  const PlannedRound& round = plan.devices[0].points[0].best_round();
  for (const Change& change : amdahl_table(round)) {
    EXPECT_LE(change.us, round.time.total().us()) << change.what;
    EXPECT_GT(change.us, 0) << change.what;
  }
}

TEST(PlanTest, AGivenBudgetAndHostTime) {
  PlanRequest request = kimi_request(8);
  request.budget = 16;
  request.host_us = 6000;
  const Plan plan = make_plan(request, times());
  const PlannedPoint& point = plan.devices[0].points[0];
  ASSERT_EQ(point.rounds.size(), 2u);
  EXPECT_EQ(point.rounds[1].budget, 16);
  EXPECT_EQ(point.rounds[1].time[Part::kHost].us(), 6000);
}

TEST(PlanTest, OverlapLowersTheExperts) {
  PlanRequest request = kimi_request(8);
  const Plan uniform = make_plan(request, times());
  request.expert_overlap = ExpertOverlap(0.35);
  const Plan alike = make_plan(request, times());
  const auto experts = [](const Plan& plan) {
    return plan.devices[0].points[1].rounds.back().distinct_experts;
  };
  EXPECT_LT(experts(alike), experts(uniform));
  EXPECT_GT(experts(alike), 8);
}

TEST(PlanTest, ShapesThatDoNotSplitAreRefused) {
  PlanRequest request = kimi_request(8);
  request.num_ranks = 3;
  EXPECT_THROW(make_plan(request, times()), Error);
}

TEST(PlanTest, BudgetsThatNoRoundCouldHaveAreRefused) {
  PlanRequest request = kimi_request(8);
  request.drafter.clear();
  request.drafter_config.reset();
  request.budget = 8;
  EXPECT_THROW(make_plan(request, times()), Error);
  request.drafter_config = kimi_k2_dflash_config(request.target);
  EXPECT_NO_THROW(make_plan(request, times()));
  request.budget = 1000;
  request.batches = {64};
  EXPECT_THROW(make_plan(request, times()), Error);
}

TEST(PlanTest, ADrafterOfAnotherTargetIsRefused) {
  PlanRequest request = kimi_request(8);
  request.drafter_config->network.hidden_size = 512;
  EXPECT_THROW(make_plan(request, times()), Error);
  request = kimi_request(8);
  request.target.num_hidden_layers = 6;  // its features come from up to layer 58
  EXPECT_THROW(make_plan(request, times()), Error);
}

// A report has no headings without something below them, and says of each GPU what the text says.
TEST(PlanTest, ReportsHaveWhatTheTextHas) {
  PlanRequest request = kimi_request(8, "h200,mi300x");
  request.batches = {1};
  std::string html = plan_as_html(make_plan(request, times()));
  EXPECT_EQ(html.find("How many at once"), std::string::npos);
  EXPECT_NE(html.find("How large a tree"), std::string::npos);
  EXPECT_NE(html.find("no build for it"), std::string::npos);
  request.batches = {1, 8};
  request.drafter.clear();
  request.drafter_config.reset();
  html = plan_as_html(make_plan(request, times()));
  EXPECT_NE(html.find("How many at once"), std::string::npos);
  EXPECT_EQ(html.find("How large a tree"), std::string::npos);
}

TEST(PlanTest, WhatFitsNowhereSaysWhatWould) {
  PlanRequest request = kimi_request(1);
  const std::string text = plan_as_text(make_plan(request, times()));
  EXPECT_NE(text.find("Nothing fits. Weights alone need -tp 8 of H200 SXM."), std::string::npos)
      << text;
  EXPECT_NE(plan_as_html(make_plan(request, times())).find("Weights alone need -tp 8"),
            std::string::npos);
  EXPECT_EQ(text.find("tok/s"), std::string::npos) << text;
  // Weights fit, but not so many tokens.
  request.num_ranks = 8;
  request.batches = {64};
  request.contexts = {131072};
  EXPECT_NE(plan_as_text(make_plan(request, times())).find("holds no 64 x 131072 tokens"),
            std::string::npos);
}

TEST(DeviceSpecTest, NamesAndSources) {
  EXPECT_EQ(find_device("RTX PRO 6000").name, "rtxpro6000");
  EXPECT_EQ(find_device("gb200").arch, "sm_100a");
  EXPECT_EQ(find_devices("h200,b300").size(), 2u);
  EXPECT_EQ(find_devices("h200,H200 SXM,b300").size(), 2u);  // named twice, planned once
  EXPECT_THROW(find_device("h300"), Error);
  EXPECT_THROW(find_devices("h200,"), Error);
  for (const DeviceSpec& device : device_specs()) {
    EXPECT_FALSE(device.source.empty()) << device.name;
    EXPECT_LE(device.read_tb_s, device.bandwidth_tb_s) << device.name;
    EXPECT_LE(device.bf16_reached, device.bf16_tflops) << device.name;
  }
}

// Sums on two H200s, rows of 7168 bf16 (docs/results/2026-11-30-h200-tensor-parallel.md).
TEST(DeviceSpecTest, SumsOverTwoRanksAreNearTheMeasuredOnes) {
  const PeerSumModel& model = find_device("h200").peer_sum;
  EXPECT_EQ(model.measured_ranks, 2);
  for (const auto& [rows, us] : std::map<double, double>{{1, 2.69},
                                                         {2, 2.80},
                                                         {4, 2.92},
                                                         {8, 3.30},
                                                         {17, 4.67},
                                                         {36, 6.13},
                                                         {73, 8.13},
                                                         {292, 21.24}})
    EXPECT_NEAR(peer_sum_us(model, 2, rows * 7168 * 2) / us, 1, 0.08) << rows << " rows";
  EXPECT_EQ(peer_sum_us(model, 1, 1e6), 0);
}

// More ranks: as many trips, more to send; large sums in two shots, which send less than one would.
TEST(DeviceSpecTest, SumsOverMoreRanksArePredicted) {
  const PeerSumModel& model = find_device("h200").peer_sum;
  constexpr double kRow = 7168 * 2;
  EXPECT_NEAR(peer_sum_us(model, 8, kRow) - peer_sum_us(model, 2, kRow), 6 * 2 * kRow / 250e3,
              1e-9);
  const double large = 292 * kRow;
  EXPECT_LT(peer_sum_us(model, 8, large), peer_sum_us(model, 2, large) + 6 * large / 250e3);
  EXPECT_GT(peer_sum_us(find_device("rtxpro6000").peer_sum, 8, kRow),
            3 * peer_sum_us(model, 8, kRow));
}

TEST(AcceptanceTest, ChainsAndTreesAreThePublishedOnes) {
  EXPECT_NEAR(chain_tokens(acceptance_model("coding", 7)), 5.3, 0.1);
  EXPECT_NEAR(chain_tokens(acceptance_model("chat", 7)), 3.7, 0.1);
  const AcceptanceModel tiny = acceptance_model("tiny-k2", 7);
  EXPECT_NEAR(chain_tokens(tiny), 4.06, 0.1);
  const std::vector<double> tokens = tokens_per_round(tiny, 64);
  EXPECT_EQ(tokens[0], 1);
  EXPECT_NEAR(tokens[8], 4.42, 0.2);
  EXPECT_NEAR(tokens[16], 4.81, 0.2);
  EXPECT_NEAR(tokens[64], 5.25, 0.2);
  for (std::size_t n = 1; n < tokens.size(); ++n) EXPECT_GT(tokens[n], tokens[n - 1]);
}

TEST(AcceptanceTest, GivenProbabilities) {
  const AcceptanceModel model = acceptance_model("0.9:0.5", 4);
  EXPECT_EQ(model.first, (std::vector<double>{0.9, 0.5, 0.5, 0.5}));
  EXPECT_THROW(acceptance_model("fast", 7), Error);
  EXPECT_THROW(acceptance_model("0.9:1.5", 7), Error);
}

}  // namespace
}  // namespace coppice::testing
