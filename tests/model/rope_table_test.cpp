#include <gtest/gtest.h>

#include <cmath>

#include "model/model_config.h"

namespace coppice {
namespace {

RopeConfig yarn(double factor, double beta_fast) {
  return {.type = RopeType::kYarn,
          .theta = 50000,
          .factor = factor,
          .original_max_position_embeddings = 4096,
          .interleaved = true,
          .beta_fast = beta_fast,
          .beta_slow = 1,
          .mscale = 1,
          .mscale_all_dim = 1};
}

struct Expected {
  std::size_t pair;
  double plain, k25, thinking, instruct;
};

// Frequencies of Kimi's 64 rotary dimensions: without scaling; K2.5 and later (factor 64, beta
// 32/1); K2-Thinking and 0905 (64, 1/1); K2-Instruct (32, 1/1).
constexpr Expected kExpected[] = {
    {0, 1, 1, 1, 1},
    {8, 0.0668740305, 0.0668740305, 0.0668740305, 0.0668740305},
    {9, 0.0476886124, 0.0437766560, 0.0476886124, 0.0476886124},
    {12, 0.0172936334, 0.0116191599, 0.0172936334, 0.0172936334},
    {16, 0.00447213595, 0.00153729673, 0.00447213595, 0.00447213595},
    {19, 0.00162175991, 0.000158374991, 0.00162175991, 0.00162175991},
    {20, 0.00115649497, 1.80702339e-05, 1.80702339e-05, 3.61404677e-05},
    {31, 2.80461213e-05, 4.38220646e-07, 4.38220646e-07, 8.76441291e-07}};

TEST(RopeTable, KimiFrequencies) {
  const auto plain = rope_frequencies({.theta = 50000}, 64);
  const auto k25 = rope_frequencies(yarn(64, 32), 64);
  const auto thinking = rope_frequencies(yarn(64, 1), 64);
  const auto instruct = rope_frequencies(yarn(32, 1), 64);
  for (const Expected& row : kExpected) {
    EXPECT_NEAR(plain[row.pair] / row.plain, 1, 1e-8) << row.pair;
    EXPECT_NEAR(k25[row.pair] / row.k25, 1, 1e-8) << row.pair;
    EXPECT_NEAR(thinking[row.pair] / row.thinking, 1, 1e-8) << row.pair;
    EXPECT_NEAR(instruct[row.pair] / row.instruct, 1, 1e-8) << row.pair;
  }
}

TEST(RopeTable, RowsHoldCosinesThenSines) {
  const std::vector<float> table = rope_table(yarn(64, 32), 64, 100);
  ASSERT_EQ(table.size(), 100u * 64u);
  EXPECT_EQ(table[0], 1.0f);
  EXPECT_EQ(table[32], 0.0f);
  EXPECT_FLOAT_EQ(table[99 * 64], std::cos(99.0f));
  EXPECT_FLOAT_EQ(table[99 * 64 + 32], std::sin(99.0f));
  EXPECT_NEAR(table[7 * 64 + 9], std::cos(7 * 0.0437766560), 1e-6);
}

// transformers gives m(mscale) / m(mscale_all_dim); without mscale_all_dim the amplitude is m.
TEST(RopeTable, Amplitude) {
  RopeConfig rope = yarn(64, 32);
  EXPECT_DOUBLE_EQ(rope_amplitude(rope), 1);
  rope.mscale_all_dim = 0;
  EXPECT_NEAR(rope_amplitude(rope), 1.4158883, 1e-7);
  EXPECT_NEAR(rope_table(rope, 64, 1)[0], 1.4158883, 1e-6);
  rope.attention_factor = 1.25;
  EXPECT_DOUBLE_EQ(rope_amplitude(rope), 1.25);
  EXPECT_DOUBLE_EQ(rope_amplitude({.theta = 50000}), 1);
}

// Llama 3.1: long wavelengths are divided by the factor, short ones kept, a ramp between.
TEST(RopeTable, Llama3) {
  const RopeConfig rope{.type = RopeType::kLlama3,
                        .theta = 500000,
                        .factor = 8,
                        .original_max_position_embeddings = 8192,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4};
  const auto plain = rope_frequencies({.theta = 500000}, 128);
  const auto scaled = rope_frequencies(rope, 128);
  constexpr double kTwoPi = 6.283185307179586;
  std::size_t kept = 0, divided = 0, between = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double turns = 8192 * plain[i] / kTwoPi;
    if (turns > 4) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (turns < 1) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8);
      ++divided;
    } else {
      const double smooth = (turns - 1) / 3;
      EXPECT_NEAR(scaled[i], (1 - smooth) * plain[i] / 8 + smooth * plain[i], 1e-12);
      ++between;
    }
  }
  EXPECT_GT(kept, 0u);
  EXPECT_GT(divided, 0u);
  EXPECT_GT(between, 0u);
}

TEST(RopeTable, GgufDivisors) {
  RopeConfig rope{.theta = 10000};
  rope.frequency_divisors = {1, 2};
  const auto frequencies = rope_frequencies(rope, 4);
  EXPECT_DOUBLE_EQ(frequencies[0], 1);
  EXPECT_DOUBLE_EQ(frequencies[1], 0.005);
}

}  // namespace
}  // namespace coppice
