// Two backends may differ in rounding, so their greedy texts are equal up to near ties: where they
// part, the reference's two best log-probabilities lie close together. COPPICE_TEST_DEVICE names
// the other backend; every parting is counted and its gap printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "io/json.h"
#include "tests/engine/support/tiny_engine.h"

namespace coppice {
namespace {

using namespace testing;

constexpr std::int64_t kTokens = 96;
constexpr std::int64_t kAlternatives = 5;
constexpr double kNearTie = 0.25;  // in log-probability

class BackendsAgreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device() == "cpu") GTEST_SKIP() << "COPPICE_TEST_DEVICE names no other backend";
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

Finished complete(Engine& engine, const std::vector<std::int32_t>& prompt) {
  Request request = greedy(prompt, kTokens);
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = kAlternatives;
  return run(engine, request);
}

struct Tally {
  std::int64_t prompts = 0, parted = 0, tokens_equal = 0;
  double widest_gap = 0, largest_error = 0;
};

// Until they part the two see the same text, so their log-probabilities may be compared too.
void compare(const Finished& reference, const Finished& other, Tally& tally) {
  ++tally.prompts;
  for (std::size_t t = 0; t < reference.tokens.size(); ++t) {
    const TokenLogprob& ours = reference.logprobs[t];
    const bool equal = reference.tokens[t] == other.tokens[t];
    tally.largest_error =
        std::max(tally.largest_error,
                 std::abs(double{ours.top[0].second} - double{other.logprobs[t].top[0].second}));
    if (equal) {
      ++tally.tokens_equal;
      continue;
    }
    const auto chosen =
        std::find_if(ours.top.begin(), ours.top.end(),
                     [&](const auto& alternative) { return alternative.first == other.tokens[t]; });
    ASSERT_NE(chosen, ours.top.end()) << "none of the best " << kAlternatives << ", at token " << t;
    const double gap = double{ours.top[0].second} - double{chosen->second};
    std::printf("  prompt %lld parts at token %zu: gap %.4f\n",
                static_cast<long long>(tally.prompts), t, gap);
    ++tally.parted;
    tally.widest_gap = std::max(tally.widest_gap, gap);
    return;
  }
}

void report(const char* what, const Tally& tally) {
  std::printf(
      "%s: %lld prompts of %lld tokens, %lld tokens equal, %lld parted, widest gap %.4f, largest "
      "difference of a best log-probability %.4f\n",
      what, static_cast<long long>(tally.prompts), static_cast<long long>(kTokens),
      static_cast<long long>(tally.tokens_equal), static_cast<long long>(tally.parted),
      tally.widest_gap, tally.largest_error);
}

TEST_F(BackendsAgreeTest, TinyK2UpToNearTies) {
  const auto reference = make_tiny_engine({.device = "cpu", .num_threads = 4});
  const auto other = make_tiny_engine({});
  Tally tally;
  const Json acceptance = read_json_file(source_dir() + "/tests/golden/tiny-k2/acceptance.json");
  for (std::size_t i = 0; i < 8; ++i)
    for (const auto& [kind, list] : acceptance.find("prompts")->as_object()) {
      std::vector<std::int32_t> prompt;
      for (const Json& token : list.as_array()[i].as_array())
        prompt.push_back(static_cast<std::int32_t>(token.as_int()));
      compare(complete(*reference, prompt), complete(*other, prompt), tally);
    }
  report("tiny-k2", tally);
  EXPECT_LT(tally.widest_gap, kNearTie);
  EXPECT_GT(tally.tokens_equal, tally.prompts * kTokens / 2);
}

// SmolLM2-135M's shapes with random weights: grouped-query attention, a tied head.
std::unique_ptr<Engine> make_random_llama(const std::string& device) {
  ModelConfig model;
  model.architecture = Architecture::kLlama;
  model.hidden_size = 576;
  model.num_hidden_layers = 30;
  model.vocab_size = 49152;
  model.intermediate_size = 1536;
  model.num_attention_heads = 9;
  model.num_key_value_heads = 3;
  model.head_dim = 64;
  model.max_position_embeddings = 8192;
  model.rms_norm_eps = 1e-5;
  model.tie_word_embeddings = true;
  model.rope.theta = 100000;
  EngineConfig config;
  config.max_model_len = 512;
  config.max_num_seqs = 1;
  EngineParts parts;
  parts.clock = &kStillClock;
  parts.backend = make_backend({.device = device, .num_threads = 4});
  parts.model =
      make_random_model(*parts.backend, model, 3, {.max_rows = 512, .max_positions = 512});
  return std::make_unique<Engine>(config, std::move(parts));
}

TEST_F(BackendsAgreeTest, SmolLm2ShapesUpToNearTies) {
  const auto reference = make_random_llama("cpu");
  const auto other = make_random_llama(test_device());
  Tally tally;
  for (std::int32_t i = 0; i < 6; ++i) {
    std::vector<std::int32_t> prompt;
    for (std::int32_t t = 0; t < 40; ++t) prompt.push_back((977 * t + 131 * i * t + 7) % 49152);
    compare(complete(*reference, prompt), complete(*other, prompt), tally);
  }
  report("SmolLM2's shapes", tally);
  EXPECT_LT(tally.widest_gap, kNearTie);
  EXPECT_LT(tally.largest_error, 0.25);
}

}  // namespace
}  // namespace coppice
