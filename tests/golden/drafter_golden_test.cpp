// models/tiny-k2-dflash against tests/golden/tiny-k2: the target's features, the context K/V that
// the drafter projects from them, and the logits of the first draft.
#include <gtest/gtest.h>

#include <memory>

#include "backend/factory/make_backend.h"
#include "model/load_model.h"
#include "tests/support/draft_driver.h"
#include "tests/support/golden_file.h"
#include "tests/support/model_driver.h"

namespace coppice {
namespace {

using testing::DraftDriver;
using testing::GoldenFile;
using testing::ModelDriver;
using testing::relative_error;

constexpr double kReferenceError = 1e-4;
constexpr double kFastError = 2e-2;
constexpr std::int64_t kNumFeatures = 4;
constexpr std::size_t kChunk = 100;

struct Loaded {
  explicit Loaded(const std::string& device)
      : backend(make_backend({.device = device, .num_threads = 0})),
        target(load_model(*backend, testing::kTinyK2, {.max_rows = 256, .max_positions = 2048})),
        drafter(load_dflash_model(*backend, testing::kTinyK2Dflash, *target,
                                  {.max_rows = 256, .max_positions = 2048})) {}
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> target;
  std::unique_ptr<DflashModel> drafter;
};

struct Case {
  std::string device;
  std::string prompt;
};

class DrafterGolden : public ::testing::TestWithParam<Case> {
 protected:
  static Loaded& loaded() {
    static Loaded reference("cpu-reference");
    static Loaded fast("cpu");
    return GetParam().device == "cpu" ? fast : reference;
  }
  double tolerance() const {
    return GetParam().device == "cpu-reference" ? kReferenceError : kFastError;
  }
};

TEST_P(DrafterGolden, FirstDraftMatches) {
  Loaded& with = loaded();
  const GoldenFile golden(GetParam().prompt);
  const auto tokens = golden.ints("token_ids");
  const auto length = static_cast<std::int64_t>(tokens.size());
  ModelDriver target(*with.backend, *with.target, length + 64, kNumFeatures);
  DraftDriver drafter(*with.backend, *with.drafter, target);

  const std::vector<float> features = target.prefill(tokens, kChunk).features;
  const std::size_t width = features.size() / tokens.size();
  const auto expected_features = golden.floats("draft_context_features");
  const std::size_t stored = expected_features.size() / width;
  for (std::size_t i = 0; i < stored; ++i)
    EXPECT_LT(relative_error({features.data() + (tokens.size() - stored + i) * width, width},
                             expected_features.subspan(i * width, width)),
              tolerance())
        << "features of row " << i;

  // Context arrives chunk by chunk, as after every prompt chunk.
  for (std::size_t begin = 0; begin < tokens.size(); begin += kChunk) {
    const std::size_t count = std::min(kChunk, tokens.size() - begin);
    drafter.append({features.data() + begin * width, count * width},
                   static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count),
                   Provenance::kPrompt);
  }
  const auto expected_k = golden.floats("draft_ctx_k_layer0");
  const auto expected_v = golden.floats("draft_ctx_v_layer0");
  const std::size_t kv_width = expected_k.size() / stored;
  for (std::size_t i = 0; i < stored; ++i) {
    const std::int64_t position = length - static_cast<std::int64_t>(stored - i);
    EXPECT_LT(
        relative_error(drafter.cached(0, 0, position), expected_k.subspan(i * kv_width, kv_width)),
        tolerance())
        << "K at " << position;
    EXPECT_LT(
        relative_error(drafter.cached(0, 1, position), expected_v.subspan(i * kv_width, kv_width)),
        tolerance())
        << "V at " << position;
  }

  const std::vector<float> logits = drafter.draft(golden.ints("greedy")[0], length);
  const auto expected = golden.floats("draft_logits");
  const std::size_t vocab_size = expected.size() / 7;
  for (std::size_t slot = 0; slot < 7; ++slot)
    EXPECT_LT(relative_error({logits.data() + slot * vocab_size, vocab_size},
                             expected.subspan(slot * vocab_size, vocab_size)),
              tolerance())
        << "slot " << slot + 1;

  // The block's own K/V is transient: another draft from the same place is the same.
  EXPECT_EQ(drafter.draft(golden.ints("greedy")[0], length), logits);
  // A different anchor must show: slot 0 holds the anchor, not a mask.
  EXPECT_NE(drafter.draft(golden.ints("greedy")[0] + 1, length), logits);
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

INSTANTIATE_TEST_SUITE_P(TinyK2Dflash, DrafterGolden, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace coppice
