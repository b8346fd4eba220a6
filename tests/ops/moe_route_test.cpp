// Routing against its definition: the bias decides who is chosen and never the weight; the largest
// biased scores win, however negative; unfit rows still name experts that exist.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "backend/factory/make_backend.h"
#include "tests/ops/support/staging.h"

namespace coppice::testing {
namespace {

struct Route {
  std::int64_t top_k = 0;
  std::vector<float> ids, weights;  // [rows, top_k]
};

class MoeRouteTest : public ::testing::TestWithParam<const char*> {
 protected:
  Route route(const std::vector<float>& logits, const std::vector<float>& bias, std::int64_t top_k,
              bool normalize = true, float scale = 2.5f) {
    const auto experts = static_cast<std::int64_t>(bias.size());
    const std::int64_t rows = std::ssize(logits) / experts;
    Staging s(*backend_);
    const Tensor ids = s.int_out(rows, {top_k}), weights = s.f32_out(rows, {top_k});
    backend_->moe_route(
        {.logits = s.f32({rows, experts}, logits),
         .bias = s.f32({experts}, bias),
         .seq_of_row = s.ints({rows}, std::vector<std::int32_t>(static_cast<std::size_t>(rows), 0)),
         .norm_topk_prob = normalize,
         .routed_scaling_factor = scale,
         .topk_ids = ids,
         .topk_weights = weights});
    return {top_k, s.read(ids), s.read(weights)};
  }

  std::unique_ptr<Backend> backend_ = make_backend({.device = GetParam(), .num_threads = 2});
  std::mt19937 rng_{5};
};

double sigmoid(float x) {
  return 1 / (1 + std::exp(-static_cast<double>(x)));
}

// One row against the definition in double precision; scores closer than `kNear` may swap.
void check_row(const float* logits, const std::vector<float>& bias, const Route& route,
               std::int64_t row, bool normalize, double scale) {
  constexpr double kNear = 1e-6;
  const auto choice = [&](std::size_t e) {
    return sigmoid(logits[e]) + static_cast<double>(bias[e]);
  };
  std::vector<std::size_t> chosen;
  double sum = 0;
  for (std::int64_t k = 0; k < route.top_k; ++k) {
    chosen.push_back(
        static_cast<std::size_t>(route.ids[static_cast<std::size_t>(row * route.top_k + k)]));
    ASSERT_LT(chosen.back(), bias.size());
    sum += sigmoid(logits[chosen.back()]);
  }
  ASSERT_EQ(std::set<std::size_t>(chosen.begin(), chosen.end()).size(), chosen.size());
  for (std::size_t k = 0; k < chosen.size(); ++k) {
    const double expected = scale * sigmoid(logits[chosen[k]]) / (normalize ? sum : 1);
    const auto weight =
        static_cast<double>(route.weights[static_cast<std::size_t>(row * route.top_k) + k]);
    ASSERT_NEAR(weight, expected, 1e-5 * scale) << "row " << row << " slot " << k;
    for (std::size_t e = 0; e < bias.size(); ++e) {
      if (std::find(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(k) + 1, e) !=
          chosen.begin() + static_cast<std::ptrdiff_t>(k) + 1)
        continue;  // taken before
      ASSERT_GE(choice(chosen[k]), choice(e) - kNear)
          << "row " << row << ": " << e << " was better";
      if (logits[chosen[k]] == logits[e] && bias[chosen[k]] == bias[e]) {
        ASSERT_LT(chosen[k], e) << "row " << row << ": a tie goes to the lowest id";
      }
    }
  }
}

TEST_P(MoeRouteTest, EqualsTheDefinitionOnManyRows) {
  struct Shape {
    std::size_t experts;
    std::int64_t top_k;
  };
  std::vector<Shape> shapes = {{16, 4}, {33, 5}, {384, 8}};
  if (std::string_view(GetParam()).starts_with("cpu"))
    for (const Shape shape :
         {Shape{1, 1}, Shape{8, 8}, Shape{160, 6}, Shape{512, 10}, Shape{1024, 64}})
      shapes.push_back(shape);
  for (const Shape shape : shapes)
    for (const double bias_mean : {0.0, 3.0, -40.0}) {  // far below zero: nothing masks with 0
      std::normal_distribution<float> logit(-2, 3);
      std::vector<float> logits(400 * shape.experts), bias(shape.experts);
      for (float& value : logits) value = std::round(4 * logit(rng_)) / 4;  // ties happen
      for (float& value : bias)
        value = static_cast<float>(bias_mean) + static_cast<float>(rng_() % 5) / 8;
      for (const bool normalize : {true, false}) {
        const Route result = route(logits, bias, shape.top_k, normalize);
        for (std::int64_t row = 0; row < 400; ++row) {
          check_row(logits.data() + static_cast<std::size_t>(row) * shape.experts, bias, result,
                    row, normalize, 2.5);
          if (HasFatalFailure()) return;
        }
      }
    }
}

// Each expert in turn draws every row, as its only choice and as its first: same weight as without.
TEST_P(MoeRouteTest, TheBiasChoosesButNeverWeighs) {
  std::vector<float> logits;
  for (int row = 0; row < 20; ++row)
    for (int e = 0; e < 16; ++e) logits.push_back(3 * noise(1, row, e));
  for (std::size_t favoured = 0; favoured < 16; ++favoured) {
    std::vector<float> bias(16, 0.0f);
    bias[favoured] = 50;
    const Route alone = route(logits, bias, 1, false, 1);
    const Route first = route(logits, bias, 4, false, 1);
    for (std::size_t row = 0; row < 20; ++row) {
      ASSERT_EQ(alone.ids[row], static_cast<float>(favoured));
      ASSERT_EQ(first.ids[4 * row], static_cast<float>(favoured));
      ASSERT_EQ(alone.weights[row], first.weights[4 * row]);
      ASSERT_NEAR(alone.weights[row], sigmoid(logits[16 * row + favoured]), 1e-6);
    }
    // The only choice, normalised, weighs one whatever its score.
    for (const float weight : route(logits, bias, 1, true, 1).weights) ASSERT_NEAR(weight, 1, 1e-5);
  }
}

TEST_P(MoeRouteTest, RowsThatAreNotFiniteNameDistinctExperts) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  std::vector<float> clean(16 * 6);
  for (std::size_t i = 0; i < clean.size(); ++i)
    clean[i] = noise(2, static_cast<std::int64_t>(i / 16), static_cast<std::int64_t>(i % 16));
  std::vector<float> logits = clean;
  std::fill_n(logits.begin(), 16, kNan);
  std::fill_n(logits.begin() + 16, 16, kInf);
  std::fill_n(logits.begin() + 32, 16, -kInf);
  logits[48 + 7] = kNan;
  const std::vector<float> bias(16, 0.125f);
  const Route damaged = route(logits, bias, 4), whole = route(clean, bias, 4);
  for (std::size_t row = 0; row < 6; ++row) {
    std::set<float> ids;
    for (std::size_t k = 0; k < 4; ++k) {
      const float id = damaged.ids[4 * row + k];
      EXPECT_TRUE(id >= 0 && id < 16) << id;
      ids.insert(id);
      if (row < 4) continue;
      EXPECT_EQ(id, whole.ids[4 * row + k]);
      EXPECT_EQ(damaged.weights[4 * row + k], whole.weights[4 * row + k]);
    }
    EXPECT_EQ(ids.size(), 4u) << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, MoeRouteTest, ::testing::Values("cpu-reference", "cpu"),
                         [](const auto& param) {
                           return std::string(param.param) == "cpu" ? "fast" : "reference";
                         });

}  // namespace
}  // namespace coppice::testing
