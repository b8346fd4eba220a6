// The published figures of docs/bandwidth.md, from what the real model code counts. Every number
// that the page quotes is computed here and must stand there.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "model/load_model.h"
#include "planner/bandwidth.h"
#include "planner/device_spec.h"
#include "planner/print.h"
#include "planner/round_cost.h"

namespace coppice {
namespace {

NetworkOnPaper kimi(std::int64_t num_layers, std::int64_t num_ranks) {
  PaperOptions options;
  options.num_ranks = num_ranks;
  options.max_batch = 1024;
  options.max_budget = 0;
  options.max_model_len = 1024;
  return {kimi_k2_config(num_layers, 384), std::nullopt, options};
}

OpCost experts_of_a_layer(std::int64_t rows) {
  static NetworkOnPaper network = kimi(2, 1);
  const CountedRound cost = network.step(rows, 1, {});
  for (const RoundOp& op : cost.ops)
    if (op.cost.kind == CostKind::kExperts) return op.cost;
  ADD_FAILURE() << "no experts";
  return {};
}

// Weights of a step without the rows of the embedding.
double weights(NetworkOnPaper& network, std::int64_t rows) {
  return network.step(rows, 1, {}).totals().weight_bytes - static_cast<double>(rows) * 14'336;
}

double expert_share(NetworkOnPaper& network, std::int64_t rows) {
  double routed = 0;
  for (const RoundOp& op : network.step(rows, 1, {}).ops)
    if (op.cost.kind == CostKind::kExperts) routed += op.cost.weight_bytes;
  return routed / weights(network, rows);
}

void expect_quoted(const std::string& text) {
  static const std::string page = [] {
    std::ifstream file(COPPICE_SOURCE_DIR "/docs/bandwidth.md");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  EXPECT_NE(page.find(text), std::string::npos) << "docs/bandwidth.md lacks: " << text;
}

constexpr double kCardTbS = 1.8;  // as the source rounds the RTX PRO 6000's 1.79

TEST(WorkedExamplesTest, OneRowOfOneLayer) {
  const double bytes = experts_of_a_layer(1).weight_bytes;
  EXPECT_NEAR(bytes / 1e9, 0.198, 5e-4);
  const double rate = gb_per_second(bytes, 0.151);
  EXPECT_NEAR(rate, 1312, 2);
  EXPECT_NEAR(rate / (kCardTbS * 1e3), 0.73, 0.002);
  EXPECT_NEAR(find_device("rtxpro6000").bandwidth_tb_s, kCardTbS, 0.011);
  expect_quoted(
      print("%.2f GB in 0.151 ms is %.0f GB/s, %.0f %%", bytes / 1e9, rate, rate / kCardTbS / 10));
}

TEST(WorkedExamplesTest, ThePlateauIsReachedBetween256And1024Rows) {
  EXPECT_NEAR(experts_of_a_layer(256).distinct_experts, 382.3, 0.1);
  EXPECT_NEAR(experts_of_a_layer(1024).distinct_experts, 384, 0.01);
  EXPECT_LT(experts_of_a_layer(64).distinct_experts, 0.75 * 384);
  expect_quoted(print("%.0f of 384 at 64 rows, %.1f at 256",
                      experts_of_a_layer(64).distinct_experts,
                      experts_of_a_layer(256).distinct_experts));
}

TEST(WorkedExamplesTest, ThePlateauWithAndWithoutScales) {
  const OpCost cost = experts_of_a_layer(1024);
  const double nibbles = cost.packed_weights / 2;
  EXPECT_NEAR(nibbles / 1e9, 8.5, 0.05);
  EXPECT_NEAR(cost.weight_bytes / 1e9, 9.51, 0.005);
  const double rate = gb_per_second(nibbles, 7.0), whole = gb_per_second(cost.weight_bytes, 7.0);
  EXPECT_NEAR(rate, 1211, 5);
  EXPECT_NEAR(rate / (kCardTbS * 1e3), 0.67, 0.003);
  expect_quoted(print("%.2f GB", nibbles / 1e9));
  expect_quoted(print("%.2f GB with them, %.0f GB/s and %.0f %%", cost.weight_bytes / 1e9, whole,
                      whole / kCardTbS / 10));
}

TEST(WorkedExamplesTest, TheSameLayerAtEightTerabytes) {
  const Decoding layer{.bytes = experts_of_a_layer(1024).packed_weights / 2,
                       .bandwidth_tb_s = 8,
                       .efficiency = 0.67};
  EXPECT_NEAR(memory_ms(layer), 1.5, 0.1);
  expect_quoted(print("%.2f ms", memory_ms(layer)));
}

TEST(WorkedExamplesTest, ExpertsAreAQuarterAThirdAndNineTenths) {
  NetworkOnPaper rank = kimi(61, 8), whole = kimi(61, 1);
  EXPECT_NEAR(expert_share(rank, 1), 0.25, 0.01);
  EXPECT_NEAR(expert_share(whole, 1), 0.36, 0.02);
  EXPECT_NEAR(expert_share(rank, 64), 0.92, 0.01);
  expect_quoted(print(
      "%.0f %% of a TP-8 rank's bytes at one row (%.0f %% unsharded) and %.0f %% at "
      "sixty-four",
      100 * expert_share(rank, 1), 100 * expert_share(whole, 1), 100 * expert_share(rank, 64)));
}

TEST(WorkedExamplesTest, AHeapOnTheCpuIsMostOfAFastStep) {
  NetworkOnPaper rank = kimi(61, 8);
  const Decoding fast{.bytes = weights(rank, 16), .bandwidth_tb_s = 8};
  const double step = step_ms(fast);
  EXPECT_NEAR(step, 3.12, 0.02);
  EXPECT_GT(6 / (6 + step), 0.5);
  expect_quoted(print("%.0f to %.0f %%", 100 * 6 / (6 + step), 100 * 21 / (21 + step)));
}

TEST(WorkedExamplesTest, OneStreamAt138Tokens) {
  constexpr double kRate = 138.7;
  NetworkOnPaper rank = kimi(61, 8);
  const Decoding plain{.bytes = weights(rank, 1), .bandwidth_tb_s = kCardTbS, .efficiency = 0.73};
  const double left = 1e3 / kRate - memory_ms(plain);
  EXPECT_NEAR(1e3 / kRate, 7.21, 0.005);
  EXPECT_NEAR(memory_ms(plain), 4.59, 0.02);
  Decoding with_fixed = plain;
  with_fixed.fixed_ms = left;
  EXPECT_NEAR(tokens_per_second(with_fixed), kRate, 1e-9);
  expect_quoted(print("%.2f ms a token, of which the bytes of one row explain %.2f", 1e3 / kRate,
                      memory_ms(plain)));
}

// Chains of n drafts on the bytes alone, with the acceptance that was published for EAGLE-3.
TEST(WorkedExamplesTest, SpeculationOnBytesAlonePaysBestAtThreeOrFourDrafts) {
  const double accepted[] = {1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77};
  const double expected[] = {1.47, 1.64, 1.69, 1.67, 1.60, 1.52, 1.43, 1.35};
  NetworkOnPaper rank = kimi(61, 8);
  double best = 0;
  for (std::int64_t drafts = 1; drafts <= 8; ++drafts) {
    const auto i = static_cast<std::size_t>(drafts - 1);
    const double gain = accepted[i] / (weights(rank, 1 + drafts) / weights(rank, 1));
    EXPECT_NEAR(gain, expected[i], 0.011) << drafts;
    best = std::max(best, gain);
  }
  EXPECT_NEAR(best, 1.69, 0.01);
  expect_quoted(print("%.2f times", best));
}

}  // namespace
}  // namespace coppice
