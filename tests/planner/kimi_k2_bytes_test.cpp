// Sizes and traffic of Kimi K2.x, computed here from the published widths alone, against what the
// real model code counts.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

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

// A published number to its last digit. Two of them were rounded from a rounded one (D(256) is
// 382.248, published 382.3), hence a little more than half a digit.
void expect_published(double value, const std::string& number) {
  const std::size_t point = number.find('.');
  const auto decimals = point == std::string::npos ? 0 : number.size() - point - 1;
  EXPECT_NEAR(value, std::stod(number), 0.55 * std::pow(10.0, -static_cast<double>(decimals)))
      << number;
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

double routed_bytes(NetworkOnPaper& network, std::int64_t rows) {
  double bytes = 0;
  for (const RoundOp& op : network.step(rows, 1, {}).ops)
    if (op.cost.kind == CostKind::kExperts) bytes += op.cost.weight_bytes;
  return bytes;
}

TEST(KimiK2BytesTest, TheParametersOfALayerAreThePublishedOnes) {
  EXPECT_EQ(kAttention, 101'122'048);
  EXPECT_EQ(kShared, 44'040'192);
  EXPECT_EQ(kExpertBytes, 24'772'608);
  EXPECT_NEAR(384 * kExpertBytes / 1e9, 9.513, 5e-4);
}

// Of a rank in GB, as published: everything split but q_a, kv_a and the router.
TEST(KimiK2BytesTest, PartsOfARankAreThePublishedOnes) {
  expect_published(2 * 61 * (kQA + kKvA + (kAttention - kQA - kKvA) / 8) / 1e9, "3.158");
  expect_published(2 * 60 * kShared / 8 / 1e9, "0.661");
  expect_published(2 * 60 * kRouter / 1e9, "0.330");
  expect_published(2 * kDenseMlp / 8 / 1e9, "0.099");
  expect_published(2 * kVocabulary / 8 / 1e9, "0.294");  // lm_head, and as much of the embedding
  expect_published(60 * 384 * kExpertBytes / 8 / 1e9, "71.345");
  expect_published(60 * 384 * kExpertBytes / 1e9, "570.76");
}

// The published totals split the embedding too. Ours is whole on every rank, and that is all the
// difference.
TEST(KimiK2BytesTest, WeightsOfOneRankAreThePublishedOnesAndAWholeEmbedding) {
  for (const auto& [ranks, gigabytes] :
       std::map<std::int64_t, std::string>{{4, "150.2"}, {8, "76.2"}, {16, "39.2"}}) {
    const auto n = static_cast<double>(ranks);
    const double split =
        non_expert_bytes(n, false) + 2 * kVocabulary / n + 60 * 384 * kExpertBytes / n;
    expect_published(split / 1e9, gigabytes);
    const double kept_whole = 2 * kVocabulary * (1 - 1 / n);
    EXPECT_NEAR(kimi(ranks).memory().target_weights - split, kept_whole, 1) << ranks;
  }
}

// The checkpoint: the language model whole; norms, the router's biases and the shapes of packed
// weights, which no rank counts; and vision with its projector, as published.
TEST(KimiK2BytesTest, TheCheckpointHas595Gigabytes) {
  constexpr double kNorms = 2 * (61 * (2 * 7168.0 + 1536 + 512) + 7168);
  constexpr double kBiases = 60 * 384 * 4.0, kShapes = 60 * 384 * 24.0, kVision = 0.94e9;
  const double whole = kimi(1).memory().target_weights;
  EXPECT_NEAR(whole, non_expert_bytes(1, true) + 60 * 384 * kExpertBytes, 1);
  expect_published((whole + kNorms + kBiases + kShapes + kVision) / 1e9, "595.15");
}

TEST(KimiK2BytesTest, CacheOfATokenIs70272Bytes) {
  EXPECT_EQ(kimi(8).memory().target_kv_per_token, 70'272);
  EXPECT_EQ(kimi(1).memory().target_kv_per_token, 70'272);
}

// Weights of one decode step: routed experts of all ranks and of one, a whole TP-8 rank and its
// floors, and one of four ranks with its floor.
TEST(KimiK2BytesTest, BytesOfAStepGrowWithTheExpertUnion) {
  struct Row {
    std::int64_t rows;
    std::string distinct, routed, tp8_routed, tp8, h200_ms, b200_ms, tp4, tp4_ms;
  };
  NetworkOnPaper eight = kimi(8), four = kimi(4);
  const double h200 = find_device("h200").bandwidth_tb_s * 1e9;  // bytes a millisecond
  const double b200 = find_device("b200").bandwidth_tb_s * 1e9;
  for (const Row& row : std::initializer_list<Row>{
           {1, "8.0", "11.9", "1.49", "6.03", "1.26", "0.75", "9.9", "1.23"},
           {2, "15.8", "23.5", "2.94", "7.48", "1.56", "0.94", "12.8", "1.60"},
           {4, "31.0", "46.1", "5.76", "10.3", "2.15", "1.29", "18.4", "2.30"},
           {8, "59.5", "88.5", "11.1", "15.6", "3.25", "1.95", "29.0", "3.63"},
           {16, "109.8", "163", "20.4", "25.0", "5.20", "3.12", "47.7", "5.96"},
           {32, "188.2", "280", "35.0", "39.5", "8.23", "4.94", "76.9", "9.61"},
           {64, "284.2", "422", "52.8", "57.3", "11.9", "7.17", "112.5", "14.1"},
           {128, "358.1", "532", "66.5", "71.1", "14.8", "8.88", "140", "17.5"},
           {256, "382.3", "568", "71.0", "75.6", "15.7", "9.45", "149", "18.6"}}) {
    SCOPED_TRACE(row.rows);
    const auto rows = static_cast<double>(row.rows);
    const double routed = 60 * uniform(rows) * kExpertBytes;
    // The embedding's rows are in the count: 14,336 bytes each.
    const auto counted = [&](NetworkOnPaper& network) {
      return network.step(row.rows, 1, {}).totals().weight_bytes - rows * 7168 * 2;
    };
    const double tp8 = non_expert_bytes(8, false) + routed / 8;
    const double tp4 = non_expert_bytes(4, false) + routed / 4;
    EXPECT_NEAR(counted(eight) / tp8, 1, 1e-9);
    EXPECT_NEAR(counted(four) / tp4, 1, 1e-9);
    EXPECT_NEAR(routed_bytes(eight, row.rows) / (routed / 8), 1, 1e-9);
    expect_published(uniform(rows), row.distinct);
    expect_published(routed / 1e9, row.routed);
    expect_published(routed / 8e9, row.tp8_routed);
    expect_published(tp8 / 1e9, row.tp8);
    expect_published(tp8 / h200, row.h200_ms);
    expect_published(tp8 / b200, row.b200_ms);
    expect_published(tp4 / 1e9, row.tp4);
    expect_published(tp4 / b200, row.tp4_ms);
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
  EXPECT_EQ(totals.message_bytes, 122.0 * 4 * 14'336 + 4 * 163'840.0 / 8 * 4);
  EXPECT_EQ(kimi(1).step(4, 1, {}).totals(Part::kAllReduce).launches, 0);
}

}  // namespace
}  // namespace coppice
