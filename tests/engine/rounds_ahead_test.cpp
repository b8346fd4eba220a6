// Rounds launched before the results of the one before are read: the same tokens and the same
// log-probabilities, bit for bit, whatever happens to a request meanwhile.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "tests/engine/support/tiny_engine.h"
#include "tests/support/sanitized.h"

namespace coppice {
namespace {

using namespace testing;

struct Case {
  std::string name;
  SpeculativeConfig speculative;
  std::int64_t num_kv_blocks = 0;
};

class RoundsAheadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

std::unique_ptr<Engine> make_engine(const Case& c, std::int64_t ahead, std::int64_t num_ranks) {
  return make_tiny_engine({.speculative = c.speculative,
                           .num_kv_blocks = c.num_kv_blocks,
                           .max_rounds_ahead = ahead,
                           .tensor_parallel_size = num_ranks});
}

Request request_of(std::int64_t i) {
  Request request =
      greedy(golden_prompt(kGoldenPrompts[static_cast<std::size_t>(i % 4 + 2)]), 20 + 17 * i);
  request.sampling.temperature = i % 2 == 0 ? 0 : 0.8;
  request.sampling.seed = i;
  request.sampling.ignore_eos = i != 3;
  request.sampling.logprobs = 5;
  return request;
}

struct Outcome {
  std::vector<Finished> finished;
  std::int64_t num_preemptions = 0;
};

// Six requests on four places: some wait, some end early, one is cancelled, one is cut by a stop
// string, one goes back to the queue.
Outcome run_all(Engine& engine) {
  Outcome outcome;
  outcome.finished.resize(6);
  std::vector<RequestId> ids;
  for (std::int64_t i = 0; i < 6; ++i) {
    Finished& into = outcome.finished[static_cast<std::size_t>(i)];
    if (i == 4) {
      ids.push_back(engine.add_request(request_of(i), [&](const RequestOutput& output) {
        into.tokens.insert(into.tokens.end(), output.token_ids.begin(), output.token_ids.end());
        if (std::ssize(into.tokens) < 9) return;
        into.tokens.resize(9);
        engine.finish(output.id, 9);
      }));
    } else {
      ids.push_back(add(engine, request_of(i), into));
    }
  }
  bool preempted = false, cancelled = false;
  while (engine.step()) {
    if (!preempted && std::ssize(outcome.finished[2].tokens) > 12)
      preempted = engine.preempt(ids[2]);
    if (!cancelled && std::ssize(outcome.finished[5].tokens) > 5) cancelled = engine.cancel(ids[5]);
  }
  EXPECT_TRUE(preempted && cancelled);
  outcome.finished[5].tokens.resize(6);  // how far it came depends on the mode
  outcome.finished[5].logprobs.resize(6);
  EXPECT_EQ(engine.metrics().num_kv_blocks_used, 0);
  outcome.num_preemptions = engine.metrics().num_preemptions;
  return outcome;
}

bool same(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob == b.logprob && a.top == b.top;
}

void expect_same(const std::vector<Case>& cases, const std::vector<std::int64_t>& rounds_ahead,
                 std::int64_t num_ranks) {
  const Outcome expected = run_all(*make_engine({"plain", plain()}, 0, num_ranks));
  ASSERT_EQ(std::ssize(expected.finished[1].tokens), 37);
  for (const Case& c : cases)
    for (const std::int64_t ahead : rounds_ahead) {
      SCOPED_TRACE(c.name + ", " + std::to_string(ahead) + " ahead");
      const Outcome outcome = run_all(*make_engine(c, ahead, num_ranks));
      EXPECT_GE(outcome.num_preemptions, 1);
      for (std::size_t i = 0; i < expected.finished.size(); ++i) {
        const Finished &a = expected.finished[i], &b = outcome.finished[i];
        EXPECT_EQ(a.tokens, b.tokens) << "request " << i;
        EXPECT_EQ(a.end_reason, b.end_reason) << "request " << i;
        ASSERT_EQ(a.logprobs.size(), b.logprobs.size()) << "request " << i;
        for (std::size_t t = 0; t < a.logprobs.size(); ++t)
          EXPECT_TRUE(same(a.logprobs[t], b.logprobs[t])) << "request " << i << ", token " << t;
      }
    }
}

TEST_F(RoundsAheadTest, TokensAndLogProbabilitiesStayTheSame) {
  std::vector<std::int64_t> rounds_ahead = {0, 1, 2};
  if (kSanitized) rounds_ahead = {2};  // the one with most in flight
  expect_same({{"plain", plain()},
               {"chain", chain()},
               {"tree 16", tree(16)},
               {"tree auto", tree(kAutoBudget)},
               {"ngram", ngram()},
               {"tree 16, tight cache", tree(16), 24}},
              rounds_ahead, 1);
}

// The same over ranks.
TEST_F(RoundsAheadTest, TwoRanksKeepThemToo) {
  try {
    check_rank_devices(test_device(), 2);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  expect_same({{"plain", plain()}, {"tree auto", tree(kAutoBudget)}, {"tree 16", tree(16), 24}},
              {2}, 2);
}

// A round in flight must not be credited to whoever has the place now.
TEST_F(RoundsAheadTest, APlaceThatChangedHandsKeepsItsOwnTokens) {
  for (const std::int64_t ahead : {1, 2}) {
    auto engine =
        make_tiny_engine({.speculative = tree(8), .max_num_seqs = 1, .max_rounds_ahead = ahead});
    const Finished alone = run(*engine, request_of(1));
    Finished first, second;
    const RequestId id = add(*engine, request_of(0), first);
    add(*engine, request_of(1), second);
    while (std::ssize(first.tokens) < 4) ASSERT_TRUE(engine->step());
    ASSERT_TRUE(engine->cancel(id));
    while (engine->step()) {
    }
    EXPECT_EQ(second.tokens, alone.tokens);
  }
}

// Masked rounds wait for the host before they choose. Greedy ones have masks too.
TEST_F(RoundsAheadTest, MaskedRoundsChooseWhatIsAllowedWithTreesAndWithout) {
  const auto forbidden = [](std::int64_t id) { return id % 3 == 1; };
  for (const double temperature : {0.0, 0.8}) {
    SCOPED_TRACE("temperature " + std::to_string(temperature));
    Request request = greedy(golden_prompt(kGoldenPrompts[2]), 60);
    request.sampling.temperature = temperature;
    request.sampling.seed = 3;
    request.sampling.ignore_eos = true;
    const Finished free = run(*make_tiny_engine({.speculative = plain()}), request);
    ASSERT_TRUE(std::any_of(free.tokens.begin(), free.tokens.end(), forbidden));
    for (std::int64_t id = 0; id < 5376; ++id)
      if (!forbidden(id)) request.sampling.allowed_token_ids.push_back(id);
    const Finished bound = run(*make_tiny_engine({.speculative = plain()}), request);
    EXPECT_EQ(std::ssize(bound.tokens), 60);
    EXPECT_TRUE(std::none_of(bound.tokens.begin(), bound.tokens.end(), forbidden));
    EXPECT_EQ(run(*make_tiny_engine({.speculative = tree(8)}), request).tokens, bound.tokens);
  }
}

}  // namespace
}  // namespace coppice
