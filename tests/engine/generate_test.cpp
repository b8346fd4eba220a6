// The engine against the golden generations of tiny-k2: tokens, rounds and accepted drafts of every
// round, for the chain and three tree sizes.
#include <gtest/gtest.h>

#include <cstdlib>

#include "io/json.h"
#include "tests/engine/support/tiny_engine.h"

namespace coppice {
namespace {

using testing::Finished;
using testing::golden_prompt;
using testing::GoldenFile;
using testing::make_tiny_engine;
using testing::run;

constexpr std::int64_t kMaxTokens = 128;

Json read_golden_json(const std::string& name) {
  return read_json_file(testing::source_dir() + "/tests/golden/tiny-k2/" + name + ".json");
}

std::vector<std::int32_t> int_list(const Json& json) {
  std::vector<std::int32_t> values;
  for (const Json& value : json.as_array())
    values.push_back(static_cast<std::int32_t>(value.as_int()));
  return values;
}

struct Mode {
  std::string golden;
  SpeculativeConfig speculative;
};

// COPPICE_SLOW_TESTS runs every golden prompt, past YaRN's original context too.
std::vector<std::string> prompts() {
  if (std::getenv("COPPICE_SLOW_TESTS") != nullptr)
    return {std::begin(testing::kGoldenPrompts), std::end(testing::kGoldenPrompts)};
  return {"code_short", "prose_mid", "chat_tool"};
}

class GenerateTest : public ::testing::TestWithParam<Mode> {};

TEST_P(GenerateTest, EqualsTheGoldenGeneration) {
  const Mode& mode = GetParam();
  auto engine = make_tiny_engine({.speculative = mode.speculative});
  for (const std::string& name : prompts()) {
    SCOPED_TRACE(name);
    const Json golden = read_golden_json(name);
    const Json& expected = *golden.find("run_" + mode.golden);
    const auto expected_tokens = int_list(*expected.find("tokens"));
    Request request = testing::greedy(golden_prompt(name), std::ssize(expected_tokens));
    request.sampling.stop_token_ids = {5121, 5122, 5129};
    const Finished result = run(*engine, request);
    EXPECT_EQ(result.tokens, expected_tokens);
    // The first output is the prefill's token; the golden run ends a round where ours must cut.
    std::vector<std::int32_t> accepted;
    for (std::size_t i = 1; i < result.tokens_per_output.size(); ++i)
      accepted.push_back(static_cast<std::int32_t>(result.tokens_per_output[i]) - 1);
    const auto expected_accepted = int_list(*expected.find("accepted_per_round"));
    ASSERT_EQ(accepted.size(), expected_accepted.size());
    for (std::size_t i = 0; i + 1 < accepted.size(); ++i)
      EXPECT_EQ(accepted[i], expected_accepted[i]) << "round " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, GenerateTest,
                         ::testing::Values(Mode{"chain", testing::chain()},
                                           Mode{"8", testing::tree(8)},
                                           Mode{"16", testing::tree(16)},
                                           Mode{"64", testing::tree(64)}),
                         [](const auto& param) { return "mode_" + param.param.golden; });

TEST(GreedyTest, PlainDecodingEqualsTheGoldenContinuation) {
  auto engine = make_tiny_engine({.speculative = testing::plain()});
  for (const char* name : {"code_short", "chat_code"}) {
    const GoldenFile golden(name);
    const auto expected = golden.ints("greedy");
    Request request = testing::greedy(golden_prompt(name), kMaxTokens);
    request.sampling.ignore_eos = true;
    EXPECT_EQ(run(*engine, request).tokens,
              std::vector<std::int32_t>(expected.begin(), expected.end()))
        << name;
  }
}

}  // namespace
}  // namespace coppice
