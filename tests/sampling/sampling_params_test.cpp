#include "sampling/sampling_params.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "base/error.h"
#include "sampling/stop_strings.h"

namespace coppice {
namespace {

TEST(SamplingParamsTest, DefaultsAndLimitsAreAccepted) {
  SamplingParams().validate(100);
  SamplingParams params;
  params.temperature = 0;
  params.top_k = -1;
  params.min_p = 1;
  params.stop_token_ids = {0, 99};
  params.logit_bias = {{99, -100}};
  params.logprobs = kMaxLogprobs;
  params.validate(100);
}

TEST(SamplingParamsTest, EveryFieldOutOfRangeIsNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<std::string, std::function<void(SamplingParams&)>>> cases = {
      {"temperature", [](auto& p) { p.temperature = -0.1; }},
      {"temperature", [&](auto& p) { p.temperature = nan; }},
      {"top_k", [](auto& p) { p.top_k = -2; }},
      {"top_p", [](auto& p) { p.top_p = 0; }},
      {"top_p", [&](auto& p) { p.top_p = nan; }},
      {"min_p", [](auto& p) { p.min_p = 1.5; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 0; }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = 3; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = -3; }},
      {"max_tokens", [](auto& p) { p.max_tokens = 0; }},
      {"max_tokens", [](auto& p) { p.max_tokens = INT64_MAX; }},
      {"min_tokens", [](auto& p) { p.min_tokens = 17; }},
      {"stop_token_ids", [](auto& p) { p.stop_token_ids = {100}; }},
      {"stop", [](auto& p) { p.stop = {""}; }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{100, 1}};
       }},
      {"logit_bias",
       [&](auto& p) {
         p.logit_bias = {{1, nan}};
       }},
      {"logprobs", [](auto& p) { p.logprobs = 21; }},
  };
  for (const auto& [field, spoil] : cases) {
    SamplingParams params;
    spoil(params);
    try {
      params.validate(100);
      ADD_FAILURE() << field << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_TRUE(std::string(error.what()).starts_with(field)) << error.what();
    }
  }
}

TEST(StopStringsTest, DoesNotDependOnHowTheTextIsCut) {
  const std::vector<std::string> texts = {"one STOP two", "aab aaab",
                                          "xSTOSTOP",     "no match S",
                                          "xaabcdx",      "\xe4\xb8\xad\xe6\x96\x87 end"};
  const std::vector<std::string> stop = {"STOP", "aaab", "abcd", "bc", "\xe6\x96\x87"};
  std::mt19937 rng(1);
  for (const std::string& text : texts) {
    StopStrings whole(stop);
    StopStrings::Result expected = whole.push(text);
    if (!expected.stopped) expected.text += whole.flush();
    for (int trial = 0; trial < 100; ++trial) {
      StopStrings pieces(stop);
      std::string shown;
      bool stopped = false;
      for (std::size_t at = 0; at < text.size() && !stopped;) {
        const std::size_t count = 1 + rng() % 4;
        const StopStrings::Result result = pieces.push(text.substr(at, count));
        shown += result.text;
        stopped = result.stopped;
        at += count;
      }
      if (!stopped) shown += pieces.flush();
      EXPECT_EQ(shown, expected.text);
      EXPECT_EQ(stopped, expected.stopped);
    }
  }
}

TEST(StopStringsTest, HoldsBackOnlyWhatMayBecomeAStop) {
  StopStrings strings({"</end>"});
  EXPECT_EQ(strings.push("a < b").text, "a < b");
  EXPECT_EQ(strings.push(" </e").text, " ");
  EXPECT_EQ(strings.push("x").text, "</ex");
  const StopStrings::Result result = strings.push("y</end>z");
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.text, "y");
  EXPECT_EQ(result.matched, "</end>");
}

}  // namespace
}  // namespace coppice
