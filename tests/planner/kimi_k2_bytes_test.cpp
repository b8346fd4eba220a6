// Sizes and traffic of Kimi K2.x, computed here from the published widths alone, against what the
// real model code counts.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/load_model.h"
#include "planner/device_spec.h"
#include "planner/round_cost.h"

namespace coppice {
namespace {

// Parameters of one layer, by hand.
constexpr double kQA = 1536.0 * 7168, kQB = 12288.0 * 1536, kKvA = 576.0 * 7168;
constexpr double kKvB = 16384.0 * 512, kO = 7168.0 * 8192;
constexpr double kAttention = kQA + kQB + kKvA + kKvB + kO;
constexpr double kShared = 3 * 2048.0 * 7168;
constexpr double kRouter = 384.0 * 7168;
constexpr double kExpertBytes = 3 * 2048.0 * 7168 * (0.5 + 2.0 / 32);
constexpr double kDenseMlp = 3 * 18432.0 * 7168;
constexpr double kVocabulary = 163840.0 * 7168;

NetworkOnPaper kimi(std::int64_t num_ranks) {
  PaperOptions options;
  options.num_ranks = num_ranks;
  options.max_batch = 256;
  options.max_budget = 0;
  options.max_model_len = 2048;
  return {kimi_k2_config(61, 384), std::nullopt, options};
}

double uniform(double rows) {
  return 384 * (1 - std::pow(1 - 8.0 / 384, rows));
}

// Of one rank: q_a, kv_a and the router are replicated, everything else is split.
double non_expert_bytes(double ranks, bool with_embedding) {
  const double replicated = 61 * (kQA + kKvA) + 60 * kRouter;
  const double split = 61 * (kAttention - kQA - kKvA) + 60 * kShared + kDenseMlp + kVocabulary;
  return 2 * (replicated + split / ranks + (with_embedding ? kVocabulary : 0));
}

TEST(KimiK2BytesTest, TheParametersOfALayerAreThePublishedOnes) {
  EXPECT_EQ(kAttention, 101'122'048);
  EXPECT_EQ(kShared, 44'040'192);
  EXPECT_EQ(kExpertBytes, 24'772'608);
  EXPECT_NEAR(384 * kExpertBytes / 1e9, 9.513, 5e-4);
}

TEST(KimiK2BytesTest, WeightsOfOneRankEqualTheSumOfItsMatrices) {
  for (const auto& [ranks, gigabytes] :
       std::map<std::int64_t, double>{{4, 151.9}, {8, 78.2}, {16, 41.4}}) {
    const double by_hand = non_expert_bytes(static_cast<double>(ranks), true) +
                           60 * 384 * kExpertBytes / static_cast<double>(ranks);
    EXPECT_NEAR(kimi(ranks).memory().target_weights / by_hand, 1, 1e-9) << ranks;
    EXPECT_NEAR(by_hand / 1e9, gigabytes, 0.05) << ranks;
  }
}

TEST(KimiK2BytesTest, CacheOfATokenIs70272Bytes) {
  EXPECT_EQ(kimi(8).memory().target_kv_per_token, 70'272);
  EXPECT_EQ(kimi(1).memory().target_kv_per_token, 70'272);
}

// One decode step: all weights of a TP-8 rank and its floors, and those of four.
TEST(KimiK2BytesTest, BytesOfAStepGrowWithTheExpertUnion) {
  struct Row {
    std::int64_t rows;
    double distinct, tp8, h200_ms, b200_ms, tp4;
  };
  NetworkOnPaper eight = kimi(8), four = kimi(4);
  for (const Row& row : std::initializer_list<Row>{{1, 8.0, 6.03, 1.26, 0.75, 9.9},
                                                   {2, 15.8, 7.48, 1.56, 0.94, 12.8},
                                                   {4, 31.0, 10.3, 2.15, 1.29, 18.4},
                                                   {8, 59.5, 15.6, 3.25, 1.95, 29.0},
                                                   {16, 109.8, 25.0, 5.20, 3.12, 47.7},
                                                   {32, 188.2, 39.5, 8.23, 4.94, 76.9},
                                                   {64, 284.2, 57.3, 11.9, 7.17, 112.5},
                                                   {128, 358.1, 71.1, 14.8, 8.88, 140},
                                                   {256, 382.3, 75.6, 15.7, 9.45, 149}}) {
    const auto rows = static_cast<double>(row.rows);
    EXPECT_NEAR(uniform(rows), row.distinct, 0.06) << row.rows;
    const auto by_hand = [&](double ranks) {
      return non_expert_bytes(ranks, false) + 60 * uniform(rows) * kExpertBytes / ranks;
    };
    // The embedding's rows are in the count: 14,336 bytes each.
    const auto counted = [&](NetworkOnPaper& network) {
      return network.step(row.rows, 1, {}).totals().weight_bytes - rows * 7168 * 2;
    };
    EXPECT_NEAR(counted(eight) / by_hand(8), 1, 1e-9) << row.rows;
    EXPECT_NEAR(counted(four) / by_hand(4), 1, 1e-9) << row.rows;
    EXPECT_NEAR(by_hand(8) / 1e9, row.tp8, 0.006 * row.tp8) << row.rows;
    EXPECT_NEAR(by_hand(4) / 1e9, row.tp4, 0.006 * row.tp4) << row.rows;
    EXPECT_NEAR(by_hand(8) / find_device("h200").bandwidth_tb_s * 1e-9, row.h200_ms,
                0.006 * row.h200_ms)
        << row.rows;
    EXPECT_NEAR(by_hand(8) / find_device("b200").bandwidth_tb_s * 1e-9, row.b200_ms,
                0.006 * row.b200_ms)
        << row.rows;
  }
}

// A row of attention against a cached position: 64 heads x (576 + 512) products.
TEST(KimiK2BytesTest, AttentionReadsTheCacheOnceAndMultipliesByEveryHead) {
  NetworkOnPaper network = kimi(1);
  const CostTotals at = network.step(8, 1000, {}).totals(Part::kAttention);
  const CostTotals later = network.step(8, 1001, {}).totals(Part::kAttention);
  EXPECT_NEAR(later.flops - at.flops, 8 * 61 * 139'264.0, 1);
  EXPECT_NEAR(later.kv_bytes - at.kv_bytes, 8 * 70'272.0, 1);
}

TEST(KimiK2BytesTest, AllReducesAreTwoALayerOf14336BytesARowAndLogitsAreGatheredOnce) {
  NetworkOnPaper network = kimi(8);
  const CostTotals totals = network.step(4, 1, {}).totals(Part::kAllReduce);
  EXPECT_EQ(totals.launches, 122 + 1);
  EXPECT_EQ(totals.message_bytes, 122.0 * 4 * 14'336 + 4 * 163'840 / 8 * 4);
  EXPECT_EQ(kimi(1).step(4, 1, {}).totals(Part::kAllReduce).launches, 0);
}

}  // namespace
}  // namespace coppice
