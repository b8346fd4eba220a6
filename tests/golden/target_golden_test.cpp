// models/tiny-k2 against tests/golden/tiny-k2 (see the README there): what every layer computes,
// what the cache holds, which experts are chosen, the logits, and greedy continuations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "backend/factory/make_backend.h"
#include "model/load_model.h"
#include "tests/support/golden_file.h"
#include "tests/support/model_driver.h"
#include "tests/support/spy_backend.h"

namespace coppice {
namespace {

using testing::argmax;
using testing::GoldenFile;
using testing::ModelDriver;
using testing::relative_error;
using testing::StepResult;

constexpr std::int64_t kLayers = 6;
constexpr std::size_t kChunk = 256;
constexpr double kReferenceError = 1e-4;
constexpr double kFastError = 2e-2;
// Below this gap between the 4th and 5th expert a rounded computation may choose another one.
constexpr float kRouterMargin = 1e-3f;

// One backend and the model on it, made once per process.
struct Loaded {
  explicit Loaded(const std::string& device)
      : spy(make_backend({.device = device, .num_threads = 0})),
        model(load_model(spy, testing::kTinyK2, {.max_rows = 256, .max_positions = 2048})) {
    const std::int64_t layers[] = {0, 1, 2, 3, 4, 5};
    model->set_feature_layers(layers);
  }
  testing::SpyBackend spy;
  std::unique_ptr<Model> model;
};

Loaded& loaded(const std::string& device) {
  static Loaded reference("cpu-reference");
  static Loaded fast("cpu");
  return device == "cpu" ? fast : reference;
}

std::span<const float> row_of(const std::vector<float>& values, std::size_t row,
                              std::size_t width) {
  return {values.data() + row * width, width};
}

struct Case {
  std::string device;
  std::string prompt;
};

class TargetGolden : public ::testing::TestWithParam<Case> {
 protected:
  double tolerance() const {
    return GetParam().device == "cpu-reference" ? kReferenceError : kFastError;
  }
};

TEST_P(TargetGolden, PromptMatches) {
  Loaded& with = loaded(GetParam().device);
  const GoldenFile golden(GetParam().prompt);
  const auto tokens = golden.ints("token_ids");
  const std::vector<std::size_t> positions = golden.positions();
  const auto hidden_size = static_cast<std::size_t>(with.model->config().hidden_size);
  const auto vocab_size = static_cast<std::size_t>(with.model->config().vocab_size);

  ModelDriver driver(with.spy, *with.model, 1600, kLayers);
  with.spy.clear();
  const StepResult result = driver.prefill(tokens, kChunk);

  const auto logits = golden.floats("logits"), hidden = golden.floats("hidden");
  const auto latent = golden.floats("mla_latent");
  const std::size_t latent_width = latent.size() / kLayers / positions.size();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    EXPECT_LT(relative_error(row_of(result.logits, positions[i], vocab_size),
                             logits.subspan(i * vocab_size, vocab_size)),
              tolerance())
        << "logits at " << positions[i];
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const auto expected =
          hidden.subspan(((layer + 1) * positions.size() + i) * hidden_size, hidden_size);
      EXPECT_LT(relative_error(row_of(result.features, positions[i] * kLayers + layer, hidden_size),
                               expected),
                tolerance())
          << "output of layer " << layer << " at " << positions[i];
      const auto cached = driver.cached(static_cast<std::int64_t>(layer), 0,
                                        static_cast<std::int64_t>(positions[i]));
      EXPECT_LT(relative_error(cached, latent.subspan((layer * positions.size() + i) * latent_width,
                                                      latent_width)),
                tolerance())
          << "cache of layer " << layer << " at " << positions[i];
    }
  }
  const auto argmax_all = golden.ints("argmax_all");
  for (std::size_t i = 0; i < tokens.size(); ++i)
    EXPECT_EQ(argmax(row_of(result.logits, i, vocab_size)), argmax_all[i]) << "at " << i;
}

TEST_P(TargetGolden, RouterMatches) {
  Loaded& with = loaded(GetParam().device);
  const GoldenFile golden(GetParam().prompt);
  const std::vector<std::size_t> positions = golden.positions();
  ModelDriver driver(with.spy, *with.model, 1600, 0);
  with.spy.clear();
  driver.prefill(golden.ints("token_ids"), kChunk);
  const auto ids = golden.ints("router_ids");
  const auto weights = golden.floats("router_weights"), margin = golden.floats("router_margin");
  constexpr std::size_t kTopK = 4, kRouted = 5;
  for (std::size_t layer = 0; layer < kRouted; ++layer)
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const std::size_t row = layer * positions.size() + i;
      if (GetParam().device != "cpu-reference" && margin[row] < kRouterMargin) continue;
      // In ascending order of the expert, as the golden file has them.
      std::vector<std::pair<std::int32_t, float>> chosen =
          with.spy.routed(layer, kRouted, positions[i]);
      std::ranges::sort(chosen);
      ASSERT_EQ(chosen.size(), kTopK);
      for (std::size_t k = 0; k < kTopK; ++k) {
        EXPECT_EQ(chosen[k].first, ids[row * kTopK + k]) << "layer " << layer + 1;
        EXPECT_NEAR(chosen[k].second, weights[row * kTopK + k], tolerance());
      }
    }
}

TEST_P(TargetGolden, GreedyContinuation) {
  Loaded& with = loaded(GetParam().device);
  const GoldenFile golden(GetParam().prompt);
  const auto vocab_size = static_cast<std::size_t>(with.model->config().vocab_size);
  const auto tokens = golden.ints("token_ids"), greedy = golden.ints("greedy");
  const auto margin = golden.floats("greedy_margin");
  ModelDriver driver(with.spy, *with.model, 1600);
  const StepResult prompt = driver.prefill(tokens, kChunk);
  std::int32_t token = argmax(row_of(prompt.logits, tokens.size() - 1, vocab_size));
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    ASSERT_EQ(token, greedy[i]) << "token " << i << ", margin " << margin[i];
    token = argmax(driver.append({&token, 1}, Provenance::kDecided).logits);
  }
}

// Every node of the golden trees must be judged as the golden run judged it.
TEST_P(TargetGolden, TreeVerification) {
  Loaded& with = loaded(GetParam().device);
  const GoldenFile golden(GetParam().prompt);
  const auto vocab_size = static_cast<std::size_t>(with.model->config().vocab_size);
  ModelDriver driver(with.spy, *with.model, 1600);
  driver.prefill(golden.ints("token_ids"), kChunk);
  for (const char* name : {"tree8", "tree16", "tree64"}) {
    const std::string tree(name);
    testing::TreeRows rows{.tokens = {golden.ints("greedy")[0]}, .parents = {-1}};
    for (const std::int32_t token : golden.ints(tree + ".tokens")) rows.tokens.push_back(token);
    for (const std::int32_t parent : golden.ints(tree + ".parents")) rows.parents.push_back(parent);
    const StepResult result = driver.verify(rows);
    const auto expected = golden.ints(tree + ".target_argmax");
    const auto margin = golden.floats(tree + ".target_margin");
    for (std::size_t node = 0; node < expected.size(); ++node)
      EXPECT_EQ(argmax(row_of(result.logits, node, vocab_size)), expected[node])
          << tree << " node " << node << ", margin " << margin[node];
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* device : {"cpu-reference", "cpu"})
    for (const char* prompt : testing::kGoldenPrompts) all.push_back({device, prompt});
  return all;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return (info.param.device == "cpu" ? "fast_" : "reference_") + info.param.prompt;
}

INSTANTIATE_TEST_SUITE_P(TinyK2, TargetGolden, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace coppice
