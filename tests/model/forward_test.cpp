// Networks against the naive oracle, and the properties that speculative decoding rests on: a row
// means the same in a prompt chunk, alone, or in a tree. On the reference and the fast backend.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/factory/make_backend.h"
#include "model/load_model.h"
#include "model/random_source.h"
#include "tests/model/support/checkpoint_files.h"
#include "tests/model/support/naive_network.h"
#include "tests/support/draft_driver.h"
#include "tests/support/model_driver.h"

namespace coppice {
namespace {

using test::NaiveNetwork;
using test::Row;
using test::Rows;
using testing::DraftDriver;
using testing::ModelDriver;
using testing::relative_error;
using testing::StepResult;
using testing::TreeRows;

constexpr std::uint64_t kSeed = 3;
constexpr ModelOptions kOptions{.max_rows = 160};

std::vector<std::int32_t> some_tokens(std::size_t n) {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<std::int32_t>((i * i * 7 + i * 31 + 5) % 299));
  return tokens;
}

std::vector<float> flat(const Rows& rows) {
  std::vector<float> values;
  for (const Row& row : rows)
    for (const double value : row) values.push_back(static_cast<float>(value));
  return values;
}

std::span<const float> row_of(const std::vector<float>& values, std::size_t row,
                              std::size_t num_rows) {
  const std::size_t width = values.size() / num_rows;
  return {values.data() + row * width, width};
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

ModelConfig llama_config(bool interleaved) {
  ModelConfig config = test::small_qwen3_config();
  config.qk_norm = false;
  config.rope.interleaved = interleaved;
  return config;
}

struct Network {
  const char* name;
  ModelConfig config;
};

std::vector<Network> networks() {
  return {{"k2", test::small_k2_config()},
          {"qwen3", test::small_qwen3_config()},
          {"llama", llama_config(false)},
          {"llama_interleaved", llama_config(true)}};
}

class ForwardTest : public ::testing::TestWithParam<const char*> {
 protected:
  ForwardTest() : backend_(make_backend({.device = GetParam(), .num_threads = 2})) {}
  double tolerance() const { return std::string(GetParam()) == "cpu-reference" ? 1e-5 : 2e-2; }
  std::unique_ptr<Backend> backend_;
};

TEST_P(ForwardTest, MatchesTheNaiveOracle) {
  const std::vector<std::int32_t> tokens = some_tokens(140);
  for (const Network& network : networks()) {
    SCOPED_TRACE(network.name);
    const auto model = make_random_model(*backend_, network.config, kSeed, kOptions);
    const std::int64_t layers[] = {0, 1};
    model->set_feature_layers(layers);
    ModelDriver driver(*backend_, *model, 200, 2);
    const StepResult result = driver.prefill(tokens, 140);

    RandomSource source(kSeed);
    NaiveNetwork naive(source, network.config);
    const std::vector<Rows> states = naive.hidden_states(tokens);
    EXPECT_LT(relative_error(result.logits, flat(naive.logits(states[2]))), tolerance());
    // Features are the outputs of layers, the last one before the final norm.
    Rows features = states[1];
    for (std::size_t i = 0; i < features.size(); ++i)
      features[i].insert(features[i].end(), states[2][i].begin(), states[2][i].end());
    EXPECT_LT(relative_error(result.features, flat(features)), tolerance());
  }
}

TEST_P(ForwardTest, ChunksOfThePromptDoNotShow) {
  const std::vector<std::int32_t> tokens = some_tokens(100);
  for (const Network& network : networks()) {
    SCOPED_TRACE(network.name);
    const auto model = make_random_model(*backend_, network.config, kSeed, kOptions);
    ModelDriver whole(*backend_, *model, 128);
    const std::vector<float> expected = whole.prefill(tokens, 100).logits;
    for (const std::size_t chunk : {1u, 7u, 64u}) {
      ModelDriver driver(*backend_, *model, 128);
      EXPECT_TRUE(same_bits(driver.prefill(tokens, chunk).logits, expected)) << chunk;
    }
  }
}

// Rows of a tree see their own path only: each equals, bit for bit, the same tokens decided one by
// one, and, up to rounding, a fresh prefill of its path.
TEST_P(ForwardTest, TreeRowsEqualTheirPaths) {
  const std::vector<std::int32_t> prompt = some_tokens(61);  // the tree crosses a block of 64
  const TreeRows tree{.tokens = {9, 20, 30, 40, 50, 60, 70, 80, 90},
                      .parents = {-1, 0, 0, 1, 1, 2, 3, 6, 6}};
  for (const Network& network : networks()) {
    SCOPED_TRACE(network.name);
    const auto model = make_random_model(*backend_, network.config, kSeed, kOptions);
    ModelDriver driver(*backend_, *model, 128);
    driver.prefill(prompt, 61);
    const std::vector<float> verified = driver.verify(tree).logits;
    for (std::size_t node = 0; node < tree.tokens.size(); ++node) {
      std::vector<std::int32_t> path;
      for (std::int32_t at = static_cast<std::int32_t>(node); at >= 0;
           at = tree.parents[static_cast<std::size_t>(at)])
        path.insert(path.begin(), tree.tokens[static_cast<std::size_t>(at)]);
      ModelDriver plain(*backend_, *model, 128);
      plain.prefill(prompt, 61);
      std::vector<float> decided;
      for (const std::int32_t token : path)
        decided = plain.append({&token, 1}, Provenance::kDecided).logits;
      const auto row = row_of(verified, node, tree.tokens.size());
      EXPECT_TRUE(same_bits(row, decided)) << "node " << node;

      std::vector<std::int32_t> all = prompt;
      all.insert(all.end(), path.begin(), path.end());
      ModelDriver fresh(*backend_, *model, 128);
      const std::vector<float> prefilled = fresh.prefill(all, all.size()).logits;
      EXPECT_LT(relative_error(row, row_of(prefilled, all.size() - 1, all.size())), tolerance());
    }
  }
}

// A chain verified in one step equals plain decoding.
TEST_P(ForwardTest, ChainEqualsPlainDecoding) {
  const std::vector<std::int32_t> prompt = some_tokens(30), chain = some_tokens(12);
  const auto model = make_random_model(*backend_, test::small_k2_config(), kSeed, kOptions);
  ModelDriver together(*backend_, *model, 128), alone(*backend_, *model, 128);
  together.prefill(prompt, 30);
  alone.prefill(prompt, 30);
  const std::vector<float> logits = together.append(chain, Provenance::kDecided).logits;
  for (std::size_t i = 0; i < chain.size(); ++i)
    EXPECT_TRUE(same_bits(row_of(logits, i, chain.size()),
                          alone.append({&chain[i], 1}, Provenance::kDecided).logits));
}

DflashConfig draft_config(std::int64_t window, bool causal) {
  DflashConfig config = test::small_dflash_config();
  config.sliding_window = window;
  config.layer_is_sliding = {window > 0, false};
  config.causal_sliding_layers = causal;
  return config;
}

// Full attention, and a sliding layer that is bidirectional or causal inside the block.
TEST_P(ForwardTest, DrafterMatchesTheNaiveOracle) {
  const auto target = make_random_model(*backend_, test::small_k2_config(), kSeed, kOptions);
  const std::vector<std::int32_t> tokens = some_tokens(70);
  RandomSource source(kSeed);
  NaiveNetwork naive_target(source, test::small_k2_config());
  const std::vector<Rows> states = naive_target.hidden_states(tokens);
  const std::int32_t mask = 299;
  const Rows block = naive_target.hidden_states({77, mask, mask, mask})[0];
  Rows features = states[1];
  for (std::size_t i = 0; i < features.size(); ++i)
    features[i].insert(features[i].end(), states[2][i].begin(), states[2][i].end());

  std::vector<std::vector<float>> all;
  for (const DflashConfig& config :
       {draft_config(0, false), draft_config(16, false), draft_config(16, true)}) {
    const auto drafter = make_random_dflash_model(*backend_, config, kSeed + 1, *target, kOptions);
    ModelDriver driver(*backend_, *target, 128, 2);
    DraftDriver draft(*backend_, *drafter, driver);
    const std::vector<float> captured = driver.prefill(tokens, 70).features;
    draft.append(captured, 0, 70, Provenance::kPrompt);
    const std::vector<float> logits = draft.draft(77, 70);

    RandomSource draft_source(kSeed + 1);
    NaiveNetwork naive(draft_source, config.network);
    const auto mask_of = [&](std::size_t layer) -> test::Mask {
      const bool is_sliding = config.layer_is_sliding[layer];
      return [=, &config](std::size_t query, std::size_t key) {
        if (!is_sliding) return true;
        if (config.causal_sliding_layers && key > query) return false;
        return static_cast<std::int64_t>(key) >
               static_cast<std::int64_t>(query) - config.sliding_window;
      };
    };
    Rows drafted = naive.draft(config, features, block, mask_of);
    drafted.erase(drafted.begin());
    // The head is the target's, without its final norm.
    const Rows expected = naive_target.head(drafted);
    EXPECT_LT(relative_error(logits, flat(expected)), tolerance());
    all.push_back(logits);
  }
  EXPECT_NE(all[0], all[1]);
  EXPECT_NE(all[1], all[2]);
}

// The options of a server: a narrower window and another YaRN amplitude.
TEST_P(ForwardTest, DrafterOptions) {
  const auto target = make_random_model(*backend_, test::small_k2_config(), kSeed, kOptions);
  const std::vector<std::int32_t> tokens = some_tokens(70);
  ModelDriver driver(*backend_, *target, 128, 2);
  const auto run = [&](const ModelOptions& options) {
    const auto drafter =
        make_random_dflash_model(*backend_, draft_config(0, false), kSeed + 1, *target, options);
    DraftDriver draft(*backend_, *drafter, driver);
    driver.truncate(0);
    draft.append(driver.prefill(tokens, 70).features, 0, 70, Provenance::kPrompt);
    return draft.draft(77, 70);
  };
  ModelOptions wide = kOptions, narrow = kOptions;
  wide.draft_window = 1000;
  narrow.draft_window = 8;
  EXPECT_EQ(run(kOptions), run(wide));
  EXPECT_NE(run(kOptions), run(narrow));
}

std::string device_name(const ::testing::TestParamInfo<const char*>& info) {
  return std::string(info.param) == "cpu" ? "fast" : "reference";
}

INSTANTIATE_TEST_SUITE_P(Cpu, ForwardTest, ::testing::Values("cpu-reference", "cpu"), device_name);

}  // namespace
}  // namespace coppice
