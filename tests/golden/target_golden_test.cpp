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

// Prefills the prompt once; the checks follow in an order that leaves the sequence in place.
class TargetGolden : public ::testing::TestWithParam<Case> {
 protected:
  TargetGolden()
      : with_(loaded(GetParam().device)),
        golden_(GetParam().prompt),
        tokens_(golden_.ints("token_ids")),
        positions_(golden_.positions()),
        driver_(with_.spy, *with_.model, 1600, kLayers) {
    with_.spy.clear();
    prompt_ = driver_.prefill(tokens_, kChunk);
  }

  bool is_reference() const { return GetParam().device == "cpu-reference"; }
  double tolerance() const { return is_reference() ? kReferenceError : kFastError; }
  std::span<const float> logits_of(const StepResult& result, std::size_t row) const {
    return row_of(result.logits, row, static_cast<std::size_t>(with_.model->config().vocab_size));
  }

  void check_layers_and_cache();
  void check_logits();
  void check_router();
  void check_trees();
  void check_greedy_continuation();

  Loaded& with_;
  GoldenFile golden_;
  std::span<const std::int32_t> tokens_;
  std::vector<std::size_t> positions_;  // rows stored in the golden file
  ModelDriver driver_;
  StepResult prompt_;
};

void TargetGolden::check_layers_and_cache() {
  const auto hidden = golden_.floats("hidden"), latent = golden_.floats("mla_latent");
  const auto hidden_size = static_cast<std::size_t>(with_.model->config().hidden_size);
  const std::size_t latent_width = latent.size() / kLayers / positions_.size();
  for (std::size_t i = 0; i < positions_.size(); ++i)
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE("layer " + std::to_string(layer) + " at " + std::to_string(positions_[i]));
      EXPECT_LT(
          relative_error(
              row_of(prompt_.features, positions_[i] * kLayers + layer, hidden_size),
              hidden.subspan(((layer + 1) * positions_.size() + i) * hidden_size, hidden_size)),
          tolerance());
      EXPECT_LT(relative_error(
                    driver_.cached(static_cast<std::int64_t>(layer), 0,
                                   static_cast<std::int64_t>(positions_[i])),
                    latent.subspan((layer * positions_.size() + i) * latent_width, latent_width)),
                tolerance());
    }
}

void TargetGolden::check_logits() {
  const auto logits = golden_.floats("logits");
  const std::size_t vocab_size = logits.size() / positions_.size();
  for (std::size_t i = 0; i < positions_.size(); ++i)
    EXPECT_LT(relative_error(logits_of(prompt_, positions_[i]),
                             logits.subspan(i * vocab_size, vocab_size)),
              tolerance())
        << "at " << positions_[i];
  const auto argmax_all = golden_.ints("argmax_all");
  for (std::size_t i = 0; i < tokens_.size(); ++i)
    EXPECT_EQ(argmax(logits_of(prompt_, i)), argmax_all[i]) << "at " << i;
}

void TargetGolden::check_router() {
  const auto ids = golden_.ints("router_ids");
  const auto weights = golden_.floats("router_weights"), margin = golden_.floats("router_margin");
  constexpr std::size_t kTopK = 4, kRouted = 5;
  for (std::size_t layer = 0; layer < kRouted; ++layer)
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      const std::size_t row = layer * positions_.size() + i;
      if (!is_reference() && margin[row] < kRouterMargin) continue;
      // In ascending order of the expert, as the golden file has them.
      auto chosen = with_.spy.routed(layer, kRouted, positions_[i]);
      std::ranges::sort(chosen);
      ASSERT_EQ(chosen.size(), kTopK);
      for (std::size_t k = 0; k < kTopK; ++k) {
        EXPECT_EQ(chosen[k].first, ids[row * kTopK + k]) << "layer " << layer + 1;
        EXPECT_NEAR(chosen[k].second, weights[row * kTopK + k], tolerance());
      }
    }
}

// Every node of the golden trees must be judged as the golden run judged it.
void TargetGolden::check_trees() {
  for (const std::string tree : {"tree8", "tree16", "tree64"}) {
    testing::TreeRows rows{.tokens = {golden_.ints("greedy")[0]}, .parents = {-1}};
    for (const std::int32_t token : golden_.ints(tree + ".tokens")) rows.tokens.push_back(token);
    for (const std::int32_t parent : golden_.ints(tree + ".parents"))
      rows.parents.push_back(parent);
    const StepResult result = driver_.verify(rows);
    const auto expected = golden_.ints(tree + ".target_argmax");
    const auto margin = golden_.floats(tree + ".target_margin");
    for (std::size_t node = 0; node < expected.size(); ++node)
      EXPECT_EQ(argmax(logits_of(result, node)), expected[node])
          << tree << " node " << node << ", margin " << margin[node];
  }
}

void TargetGolden::check_greedy_continuation() {
  const auto greedy = golden_.ints("greedy");
  const auto margin = golden_.floats("greedy_margin");
  std::int32_t token = argmax(logits_of(prompt_, tokens_.size() - 1));
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    ASSERT_EQ(token, greedy[i]) << "token " << i << ", margin " << margin[i];
    token = argmax(driver_.append({&token, 1}, Provenance::kDecided).logits);
  }
}

TEST_P(TargetGolden, Matches) {
  check_layers_and_cache();
  check_logits();
  check_router();
  check_trees();
  check_greedy_continuation();
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
