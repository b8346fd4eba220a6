// The published figures of docs/bandwidth.md, from what the real model code counts. Every number
// that the page quotes is computed here and must stand there, in its sentence.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

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

// What the worked examples start from: times and rates that others published, and `counted`, by
// which a test spoils the bytes that the model's code counts.
struct Published {
  double counted = 1;
  double card_tb_s = 1.8;  // as the source rounds the RTX PRO 6000's 1.79
  double row_ms = 0.151, plateau_ms = 7.0;
  double next_tb_s = 8;
  double heap_ms = 6, slow_heap_ms = 21;
  double tokens_per_s = 138.7;
  // Tokens a step of chains of 1 to 8 EAGLE-3 drafts.
  std::array<double, 8> accepted = {1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77};
};

double row_gb_s(const Published& p) {
  return gb_per_second(p.counted * experts_of_a_layer(1).weight_bytes, p.row_ms);
}
// Of the weights without their scales, as the source counts.
double nibbles(const Published& p) {
  return p.counted * experts_of_a_layer(1024).packed_weights / 2;
}
double plateau_gb_s(const Published& p) {
  return gb_per_second(nibbles(p), p.plateau_ms);
}
// A share of the card's bandwidth, in whole per cents as the source goes on with it.
double percent_of_card(const Published& p, double gb_s) {
  return std::round(gb_s / p.card_tb_s / 10);
}
double next_layer_ms(const Published& p) {
  return memory_ms({.bytes = nibbles(p),
                    .bandwidth_tb_s = p.next_tb_s,
                    .efficiency = percent_of_card(p, plateau_gb_s(p)) / 100});
}
double fast_step_ms(const Published& p) {
  static NetworkOnPaper rank = kimi(61, 8);
  return step_ms({.bytes = p.counted * weights(rank, 16), .bandwidth_tb_s = p.next_tb_s});
}
double bytes_of_a_token_ms(const Published& p) {
  static NetworkOnPaper rank = kimi(61, 8);
  return memory_ms({.bytes = p.counted * weights(rank, 1),
                    .bandwidth_tb_s = p.card_tb_s,
                    .efficiency = percent_of_card(p, row_gb_s(p)) / 100});
}
// Of chains of 1 to 8 drafts, on the bytes alone.
std::array<double, 8> gains(const Published& p) {
  static NetworkOnPaper rank = kimi(61, 8);
  std::array<double, 8> gains{};
  for (std::size_t i = 0; i < gains.size(); ++i)
    gains[i] = p.accepted[i] / (weights(rank, 2 + static_cast<std::int64_t>(i)) / weights(rank, 1));
  return gains;
}

// The sentences of docs/bandwidth.md, with the figures that follow from `p`.
std::vector<std::string> sentences(const Published& p) {
  static NetworkOnPaper rank = kimi(61, 8), whole = kimi(61, 1);
  static const char* const kNumbers[] = {"one",  "two", "three", "four",
                                         "five", "six", "seven", "eight"};
  const double all = p.counted * experts_of_a_layer(1024).weight_bytes;
  const double all_gb_s = gb_per_second(all, p.plateau_ms);
  const double step = fast_step_ms(p);
  const std::array<double, 8> gain = gains(p);
  const auto best = std::ranges::max_element(gain);
  return {
      print("Routed experts are %.0f %% of a TP-8 rank's bytes at one row (%.0f %% unsharded) and "
            "%.0f %% at sixty-four.",
            100 * expert_share(rank, 1), 100 * expert_share(whole, 1),
            100 * expert_share(rank, 64)),
      print("%.0f of 384 at 64 rows, %.1f at 256.", experts_of_a_layer(64).distinct_experts,
            experts_of_a_layer(256).distinct_experts),
      print("on a card of %g TB/s:", p.card_tb_s),
      print("One row: %.2f GB in %.3f ms is %.0f GB/s, %.0f %% of the card.",
            p.counted * experts_of_a_layer(1).weight_bytes / 1e9, p.row_ms, row_gb_s(p),
            percent_of_card(p, row_gb_s(p))),
      print("%.1f ms for %.1f GB of 4-bit weights (%.2f GB) is about %.0f GB/s, %.0f %%.",
            p.plateau_ms, nibbles(p) / 1e9, nibbles(p) / 1e9, 10 * std::round(plateau_gb_s(p) / 10),
            percent_of_card(p, plateau_gb_s(p))),
      print("it is %.2f GB with them, %.0f GB/s and %.0f %% of the card.", all / 1e9, all_gb_s,
            percent_of_card(p, all_gb_s)),
      print("On %g TB/s at the same %.0f %%: %.2f ms.", p.next_tb_s,
            percent_of_card(p, plateau_gb_s(p)), next_layer_ms(p)),
      print("A heap on the CPU that takes %g to %g ms a step, beside a step whose bytes take "
            "%.2f ms (a TP-8 rank, 16 rows, %g TB/s), is %.0f to %.0f %% of the sum.",
            p.heap_ms, p.slow_heap_ms, step, p.next_tb_s, 100 * p.heap_ms / (p.heap_ms + step),
            100 * p.slow_heap_ms / (p.slow_heap_ms + step)),
      print("%.1f tokens/s at one stream is %.2f ms a token, of which the bytes of one row explain "
            "%.2f at %.0f %% of %g TB/s on each of eight cards.",
            p.tokens_per_s, 1e3 / p.tokens_per_s, bytes_of_a_token_ms(p),
            percent_of_card(p, row_gb_s(p)), p.card_tb_s),
      print("(%.2f to %.2f tokens a step for 1 to 8 drafts) a TP-8 rank gains at most %.2f times, "
            "at %s drafts; at eight it gains %s than at one.",
            p.accepted.front(), p.accepted.back(), *best, kNumbers[best - gain.begin()],
            gain.back() < gain.front() ? "less" : "more")};
}

// Those that the page, read as one line, does not have.
std::vector<std::string> missing(const std::vector<std::string>& sentences) {
  static const std::string page = [] {
    std::ifstream file(COPPICE_SOURCE_DIR "/docs/bandwidth.md");
    std::string text, word;
    while (file >> word) text += word + " ";
    return text;
  }();
  std::vector<std::string> missing;
  for (const std::string& sentence : sentences)
    if (page.find(sentence) == std::string::npos) missing.push_back(sentence);
  return missing;
}

TEST(WorkedExamplesTest, ThePageQuotesWhatFollows) {
  for (const std::string& sentence : missing(sentences({})))
    ADD_FAILURE() << "docs/bandwidth.md lacks: " << sentence;
}

// The planted faults: with any figure off by two per cent the page lacks a sentence, and every
// sentence that a figure goes into is lacking for one of them.
TEST(WorkedExamplesTest, AChangedFigureIsMissedOnThePage) {
  std::vector<Published> changed(9);
  changed[0].counted *= 1.02;
  changed[1].card_tb_s *= 1.02;
  changed[2].row_ms *= 1.02;
  changed[3].plateau_ms *= 1.02;
  changed[4].next_tb_s *= 1.02;
  changed[5].heap_ms *= 1.02;
  changed[6].slow_heap_ms *= 1.02;
  changed[7].tokens_per_s *= 1.02;
  changed[8].accepted[2] *= 1.02;
  std::set<std::size_t> found;
  for (std::size_t figure = 0; figure < changed.size(); ++figure) {
    const std::vector<std::string> spoilt = sentences(changed[figure]);
    EXPECT_FALSE(missing(spoilt).empty()) << "figure " << figure;
    for (std::size_t i = 0; i < spoilt.size(); ++i)
      if (!missing({spoilt[i]}).empty()) found.insert(i);
  }
  EXPECT_EQ(found.size(), sentences({}).size() - 2);  // shares and unions have no such figure
  Published four;                                     // drafts pay best
  four.accepted[3] *= 1.02;
  EXPECT_EQ(missing(sentences(four)).size(), 1u);
  Published long_chains;
  long_chains.accepted[7] *= 1.1;
  EXPECT_EQ(missing(sentences(long_chains)).size(), 1u);
}

TEST(WorkedExamplesTest, OneRowOfOneLayer) {
  EXPECT_NEAR(experts_of_a_layer(1).weight_bytes / 1e9, 0.198, 5e-4);
  EXPECT_NEAR(row_gb_s({}), 1312, 2);
  EXPECT_EQ(percent_of_card({}, row_gb_s({})), 73);
  EXPECT_NEAR(find_device("rtxpro6000").bandwidth_tb_s, Published{}.card_tb_s, 0.011);
}

TEST(WorkedExamplesTest, ThePlateauIsReachedBetween256And1024Rows) {
  EXPECT_NEAR(experts_of_a_layer(256).distinct_experts, 382.3, 0.1);
  EXPECT_NEAR(experts_of_a_layer(1024).distinct_experts, 384, 0.01);
  EXPECT_LT(experts_of_a_layer(64).distinct_experts, 0.75 * 384);
}

TEST(WorkedExamplesTest, ThePlateauWithAndWithoutScales) {
  EXPECT_NEAR(nibbles({}) / 1e9, 8.456, 0.005);
  EXPECT_NEAR(experts_of_a_layer(1024).weight_bytes / 1e9, 9.51, 0.005);
  EXPECT_NEAR(plateau_gb_s({}), 1208, 2);  // "about 1210"
  EXPECT_EQ(percent_of_card({}, plateau_gb_s({})), 67);
}

TEST(WorkedExamplesTest, TheSameLayerAtEightTerabytes) {
  EXPECT_NEAR(next_layer_ms({}), 1.578, 0.002);
}

TEST(WorkedExamplesTest, ExpertsAreAQuarterAThirdAndNineTenths) {
  NetworkOnPaper rank = kimi(61, 8), whole = kimi(61, 1);
  EXPECT_NEAR(expert_share(rank, 1), 0.25, 0.01);
  EXPECT_NEAR(expert_share(whole, 1), 0.36, 0.01);
  EXPECT_NEAR(expert_share(rank, 64), 0.92, 0.01);
}

TEST(WorkedExamplesTest, AHeapOnTheCpuIsMostOfAFastStep) {
  EXPECT_NEAR(fast_step_ms({}), 3.12, 0.005);
  EXPECT_GT(6 / (6 + fast_step_ms({})), 0.5);
}

TEST(WorkedExamplesTest, OneStreamAt138Tokens) {
  const double bytes_ms = bytes_of_a_token_ms({});
  EXPECT_NEAR(1e3 / 138.7, 7.21, 0.005);
  EXPECT_NEAR(bytes_ms, 4.59, 0.005);
  NetworkOnPaper rank = kimi(61, 8);
  EXPECT_NEAR(tokens_per_second({.bytes = weights(rank, 1),
                                 .bandwidth_tb_s = 1.8,
                                 .efficiency = 0.73,
                                 .fixed_ms = 1e3 / 138.7 - bytes_ms}),
              138.7, 1e-9);
}

// Published to two decimals; 1.69 is 1.6849 rounded twice.
TEST(WorkedExamplesTest, SpeculationOnBytesAlonePaysBestAtThreeDrafts) {
  const double published[] = {1.47, 1.64, 1.69, 1.67, 1.60, 1.52, 1.43, 1.35};
  const std::array<double, 8> gain = gains({});
  for (std::size_t i = 0; i < gain.size(); ++i) {
    EXPECT_NEAR(gain[i], published[i], 0.0055) << i + 1 << " drafts";
  }
  EXPECT_EQ(std::ranges::max_element(gain) - gain.begin(), 2);
  EXPECT_GT(gain[2] - gain[3], 0.01);  // three pay more than four
  EXPECT_LT(gain[7], gain[0] - 0.1);   // eight pay less than one
}

}  // namespace
}  // namespace coppice
