// What the engine promises its callers, on tiny-k2.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <numeric>

#include "backend/trace/forwarding_backend.h"
#include "base/error.h"
#include "tests/engine/support/tiny_engine.h"
#include "tests/io/support/files.h"
#include "tests/support/lost_backend.h"

namespace coppice {
namespace {

using namespace testing;

Request request_for(const std::string& prompt, std::int64_t max_tokens) {
  Request request = greedy(golden_prompt(prompt), max_tokens);
  request.sampling.ignore_eos = true;
  return request;
}

TEST(EngineTest, StopIdsEndInsideAnAcceptedPath) {
  auto engine = make_tiny_engine({.speculative = tree(16)});
  const Finished free = run(*engine, request_for("code_short", 40));
  for (const std::size_t at : {0u, 3u, 7u, 12u}) {
    Request request = request_for("code_short", 40);
    request.sampling.stop_token_ids = {free.tokens[at]};
    const auto first = std::find(free.tokens.begin(), free.tokens.end(), free.tokens[at]);
    const Finished stopped = run(*engine, request);
    EXPECT_EQ(stopped.tokens, std::vector<std::int32_t>(free.tokens.begin(), first + 1));
    EXPECT_EQ(stopped.end_reason, EndReason::kStop);
    EXPECT_EQ(stopped.stop_token_id, free.tokens[at]);
    // Banned until min_tokens: the text takes another way, and may stop right after.
    request.sampling.min_tokens = 20;
    const Finished later = run(*engine, request);
    EXPECT_GE(std::ssize(later.tokens), 20);
    for (std::size_t i = 0; i < 19; ++i) EXPECT_NE(later.tokens[i], free.tokens[at]);
  }
}

// A model with as many stop tokens as can be, and a request that brings as many of its own.
TEST(EngineTest, StopIdsOfModelAndRequestFillTheirRow) {
  const test::TempDir dir;
  for (const auto& entry : std::filesystem::directory_iterator(kTinyK2))
    std::filesystem::create_symlink(entry.path(), dir / entry.path().filename().string());
  std::filesystem::remove(dir / "generation_config.json");
  std::vector<std::int64_t> eos = load_model_config(kTinyK2).eos_token_ids;
  for (std::int64_t id = 5200; eos.size() < 16; ++id) eos.push_back(id);
  Json generation = Json::object();
  generation["eos_token_id"] = Json::array();
  for (const std::int64_t id : eos) generation["eos_token_id"].push_back(id);
  test::write_file(dir / "generation_config.json", write_json(generation));

  auto engine = make_tiny_engine({.model = dir.path().string(), .speculative = tree(16)});
  ASSERT_EQ(engine->model_config().eos_token_ids.size(), 16u);
  Request request = greedy(golden_prompt("code_long"), 40);
  const std::vector<std::int32_t> all = run(*engine, request).tokens;
  for (std::int64_t id = 5300; request.sampling.stop_token_ids.size() < 15; ++id)
    request.sampling.stop_token_ids.push_back(id);
  request.sampling.stop_token_ids.push_back(all[20]);
  const Finished stopped = run(*engine, request);
  EXPECT_EQ(stopped.end_reason, EndReason::kStop);
  EXPECT_EQ(stopped.stop_token_id, all[20]);
  request.sampling.stop_token_ids.push_back(1);
  EXPECT_THROW(run(*engine, request), Error);
}

TEST(EngineTest, MaxTokensIsExactInEveryMode) {
  for (const SpeculativeConfig& speculative : {plain(), chain(), tree(16), ngram()}) {
    auto engine = make_tiny_engine({.speculative = speculative});
    for (const std::int64_t count : {1, 2, 5, 9}) {
      const Finished result = run(*engine, request_for("code_short", count));
      EXPECT_EQ(std::ssize(result.tokens), count);
      EXPECT_EQ(result.end_reason, EndReason::kLength);
      EXPECT_EQ(result.stats.num_output_tokens, count);
    }
    EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0);
    EXPECT_EQ(engine->metrics().num_finished, 4);
  }
}

TEST(EngineTest, CancelFreesEverythingAndDisturbsNobody) {
  auto engine = make_tiny_engine({.speculative = tree(8), .max_num_seqs = 2});
  const Finished alone = run(*engine, request_for("prose_mid", 30));
  Finished kept, dropped, waiting;
  std::vector<RequestId> ids;
  add(*engine, request_for("prose_mid", 30), kept);
  ids.push_back(add(*engine, request_for("code_short", 200), dropped));
  ids.push_back(add(*engine, request_for("chat_code", 200), waiting));
  for (int i = 0; i < 6; ++i) engine->step();
  for (const RequestId id : ids) {
    EXPECT_TRUE(engine->cancel(id));
    EXPECT_FALSE(engine->cancel(id));
  }
  while (engine->step()) {
  }
  EXPECT_EQ(kept.tokens, alone.tokens);
  EXPECT_LT(std::ssize(dropped.tokens), 200);
  EXPECT_EQ(dropped.end_reason, EndReason::kNone);
  EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0);
}

TEST(EngineTest, CallbacksMayCancelFinishAndAdd) {
  auto engine = make_tiny_engine({.speculative = chain()});
  std::int64_t outputs_after_end = 0, total = 0;
  bool ended = false;
  Finished follower;
  RequestId id = 0, victim = 0;
  Finished victim_result;
  victim = add(*engine, request_for("chat_code", 300), victim_result);
  id = engine->add_request(request_for("code_short", 100), [&](const RequestOutput& output) {
    if (ended) ++outputs_after_end;
    total += std::ssize(output.token_ids);
    if (total < 10 || ended) return;
    ended = true;
    EXPECT_TRUE(engine->finish(id, 10));
    EXPECT_TRUE(engine->cancel(victim));
    add(*engine, request_for("chat_code", 5), follower);
  });
  while (engine->step()) {
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ(outputs_after_end, 0);
  EXPECT_EQ(std::ssize(follower.tokens), 5);
  EXPECT_LT(std::ssize(victim_result.tokens), 300);
  EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0);
}

TEST(EngineTest, WhatFollowsAStopStringIsNeverCached) {
  auto engine = make_tiny_engine({.speculative = tree(16), .enable_prefix_caching = true});
  const std::vector<std::int32_t> prompt = golden_prompt("prose_mid");  // 130 tokens
  std::vector<std::int32_t> output;
  RequestId id = 0;
  id = engine->add_request(request_for("prose_mid", 100), [&](const RequestOutput& result) {
    output.insert(output.end(), result.token_ids.begin(), result.token_ids.end());
    if (std::ssize(output) >= 66) engine->finish(id, 60);  // 130 + 60 < 192 <= 130 + 66 - 1
  });
  while (engine->step()) {
  }
  Request again = request_for("prose_mid", 4);
  again.prompt_token_ids.insert(again.prompt_token_ids.end(), output.begin(), output.end());
  EXPECT_EQ(run(*engine, again).stats.num_cached_tokens, 128);
}

TEST(EngineTest, PrefixesAreSharedWithinASaltOnly) {
  auto engine = make_tiny_engine({.speculative = chain(), .enable_prefix_caching = true});
  Request request = request_for("code_long", 20);  // 257 tokens
  const Finished cold = run(*engine, request);
  EXPECT_EQ(cold.stats.num_cached_tokens, 0);
  const Finished warm = run(*engine, request);
  EXPECT_EQ(warm.stats.num_cached_tokens, 256);
  EXPECT_EQ(warm.tokens, cold.tokens);
  // The drafter's keys were shared too: it drafts as well as before.
  EXPECT_EQ(warm.stats.num_accepted_tokens, cold.stats.num_accepted_tokens);
  request.cache_salt = "another tenant";
  EXPECT_EQ(run(*engine, request).stats.num_cached_tokens, 0);
}

TEST(EngineTest, LogprobsAreTheSameInEveryMode) {
  Request request = request_for("chat_code", 16);
  request.sampling.logprobs = 3;
  auto plain_engine = make_tiny_engine({.speculative = plain()});
  auto tree_engine = make_tiny_engine({.speculative = tree(16)});
  const Finished a = run(*plain_engine, request), b = run(*tree_engine, request);
  ASSERT_EQ(a.logprobs.size(), 16u);
  ASSERT_EQ(b.logprobs.size(), 16u);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(a.logprobs[i].logprob, b.logprobs[i].logprob);
    EXPECT_EQ(a.logprobs[i].top, b.logprobs[i].top);
    ASSERT_EQ(a.logprobs[i].top.size(), 3u);
    EXPECT_EQ(a.logprobs[i].top[0].first, a.tokens[i]);  // greedy
    EXPECT_FLOAT_EQ(a.logprobs[i].top[0].second, a.logprobs[i].logprob);
  }
}

TEST(EngineTest, SeedsAndChoicesNameTheNoise) {
  auto engine = make_tiny_engine({.speculative = tree(16)});
  Request request = request_for("code_long", 24);  // one that tiny-k2 is not sure about
  request.sampling.temperature = 1.0;
  request.sampling.seed = 5;
  const auto first = run(*engine, request).tokens;
  EXPECT_EQ(run(*engine, request).tokens, first);
  request.sampling.choice_index = 1;
  EXPECT_NE(run(*engine, request).tokens, first);
  request.sampling.choice_index = 0;
  request.sampling.seed = 6;
  EXPECT_NE(run(*engine, request).tokens, first);
  request.sampling.seed.reset();
  const auto derived = run(*engine, request).tokens;
  EXPECT_NE(run(*engine, request).tokens, derived);  // every request its own
}

TEST(EngineTest, RequestsThatCannotRunAreRefusedByName) {
  auto engine = make_tiny_engine({.max_model_len = 128, .num_kv_blocks = 4});
  const auto message = [&](Request request) -> std::string {
    try {
      engine->add_request(std::move(request), [](const RequestOutput&) {});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message(greedy({}, 4)).find("prompt_token_ids is empty"), std::string::npos);
  EXPECT_NE(message(greedy({1, 5376}, 4)).find("5376"), std::string::npos);
  EXPECT_NE(message(greedy({1, -1}, 4)).find("-1"), std::string::npos);
  EXPECT_NE(message(greedy(std::vector<std::int32_t>(100, 7), 29)).find("max_model_len (128)"),
            std::string::npos);
  EXPECT_EQ(message(greedy(std::vector<std::int32_t>(100, 7), 28)), "accepted");
  Request hot = greedy({1}, 4);
  hot.sampling.temperature = -1;
  EXPECT_NE(message(hot).find("temperature"), std::string::npos);
}

// Logits of one request turn to NaN from a given position on.
class NanBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void sample_rows(const SampleRowsArgs& args) override {
    for (std::int64_t t = 0; t < args.logits.shape(0); ++t) {
      const std::int32_t b = args.seq_of_row.data<std::int32_t>()[t];
      if (b < 0 || args.sampling.seed.data<std::int64_t>()[b] != 666) continue;
      if (args.positions.data<std::int32_t>()[t] >= 40)
        args.logits.row<float>(t)[3] = std::numeric_limits<float>::quiet_NaN();
    }
    ForwardingBackend::sample_rows(args);
  }
};

TEST(EngineTest, NotFiniteLogitsEndTheirRequestOnly) {
  for (const SpeculativeConfig& speculative : {plain(), chain(), tree(16)}) {
    auto engine = make_tiny_engine({.speculative = speculative, .wrap_backend = [](auto inner) {
                                      return std::make_unique<NanBackend>(std::move(inner));
                                    }});
    const Finished alone = run(*engine, request_for("chat_code", 30));
    Finished bad, good;
    Request poisoned = request_for("code_short", 60);  // 22 tokens
    poisoned.sampling.seed = 666;
    add(*engine, poisoned, bad);
    add(*engine, request_for("chat_code", 30), good);
    while (engine->step()) {
    }
    EXPECT_EQ(bad.end_reason, EndReason::kError);
    EXPECT_EQ(std::ssize(bad.tokens), 40 - 22 + 1);
    EXPECT_EQ(good.tokens, alone.tokens);
    EXPECT_EQ(engine->metrics().num_not_finite, 1);
    EXPECT_EQ(engine->metrics().not_finite_in_a_row, 0) << "the good one ended later";
    for (int i = 1; i <= 3; ++i) {
      run(*engine, poisoned);
      EXPECT_EQ(engine->metrics().not_finite_in_a_row, i);
    }
    run(*engine, request_for("chat_code", 4));
    EXPECT_EQ(engine->metrics().not_finite_in_a_row, 0);
    EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0);
  }
}

// Requests can leave an engine that has failed, and so can it: a server answers them with the
// cause.
TEST(EngineTest, ALostDeviceFailsTheStepAndNothingAfterIt) {
  std::atomic<bool> lost = false;
  auto engine = make_tiny_engine({.speculative = tree(8), .wrap_backend = [&](auto inner) {
                                    return std::make_unique<LostBackend>(std::move(inner), lost);
                                  }});
  Finished first, second;
  const RequestId cancelled = add(*engine, request_for("code_short", 60), first);
  add(*engine, request_for("chat_code", 60), second);
  for (int i = 0; i < 4; ++i) engine->step();
  lost = true;
  EXPECT_THROW(engine->step(), Error);
  EXPECT_TRUE(engine->cancel(cancelled));
  engine.reset();  // with the other one inside
}

// What a request gains by speculation does not depend on how many came before it, and positions add
// up to what was accepted.
TEST(EngineTest, LaterRequestsDraftAsTheFirst) {
  auto engine = make_tiny_engine({.speculative = tree(12), .enable_prefix_caching = false});
  const RequestStats first = run(*engine, request_for("code_short", 80)).stats;
  EXPECT_GT(first.num_accepted_tokens, 40);
  for (int i = 0; i < 20; ++i) {
    const RequestStats later = run(*engine, request_for("code_short", 80)).stats;
    ASSERT_EQ(later.num_rounds, first.num_rounds) << "request " << i + 2;
    ASSERT_EQ(later.num_draft_tokens, first.num_draft_tokens);
    ASSERT_EQ(later.num_accepted_tokens, first.num_accepted_tokens);
  }
  std::vector<Finished> together(8);
  for (Finished& result : together) add(*engine, request_for("code_short", 80), result);
  while (engine->step()) {
  }
  for (const Finished& result : together)
    EXPECT_EQ(result.stats.num_accepted_tokens, first.num_accepted_tokens);
  const EngineMetrics& metrics = engine->metrics();
  EXPECT_EQ(metrics.num_accepted_tokens, 29 * first.num_accepted_tokens);
  EXPECT_EQ(std::accumulate(metrics.accepted_at_depth.begin(), metrics.accepted_at_depth.end(),
                            std::int64_t{0}),
            metrics.num_accepted_tokens);
  for (std::size_t depth = 1; depth < metrics.accepted_at_depth.size(); ++depth) {
    EXPECT_LE(metrics.accepted_at_depth[depth], metrics.drafts_at_depth[depth]);
    EXPECT_LE(metrics.drafts_at_depth[depth], metrics.drafts_at_depth[depth - (depth > 1 ? 1 : 0)]);
  }
}

TEST(EngineTest, TracesShowEveryRound) {
  auto engine = make_tiny_engine({.speculative = tree(16)});
  std::int64_t emitted = 0, rounds = 0;
  engine->set_round_observer([&](const RoundTrace& trace) {
    ++rounds;
    emitted += std::ssize(trace.emitted);
    EXPECT_EQ(trace.accepted.size(), trace.emitted.size());
    for (std::size_t i = 1; i < trace.accepted.size(); ++i)
      EXPECT_EQ(trace.tree.tokens[static_cast<std::size_t>(trace.accepted[i])],
                trace.emitted[i - 1]);
  });
  const Finished result = run(*engine, request_for("code_short", 50));
  EXPECT_EQ(emitted + 1, 50);  // the first token is the prefill's
  EXPECT_EQ(rounds, result.stats.num_rounds);
  const EngineMetrics& metrics = engine->metrics();
  EXPECT_EQ(metrics.num_decode_tokens, 49);
  EXPECT_GT(metrics.tokens_per_round(), 3.0);
  EXPECT_EQ(metrics.num_accepted_tokens, 49 - rounds);
}

// A request that never drafted leaves the same drafter context behind as one that did.
TEST(EngineTest, FeaturesThatWaitedGiveTheSameTrees) {
  std::vector<std::vector<std::int32_t>> trees[2];
  for (const std::int64_t budget : {0, 12}) {
    auto engine = make_tiny_engine({.speculative = tree(12), .enable_prefix_caching = true});
    Request first = request_for("code_short", 150);
    first.ddtree_budget = budget;
    Request second = first;
    const std::vector<std::int32_t> output = run(*engine, first).tokens;
    second.prompt_token_ids.insert(second.prompt_token_ids.end(), output.begin(), output.end());
    second.sampling.max_tokens = 30;
    second.ddtree_budget = 12;
    engine->set_round_observer(
        [&](const RoundTrace& trace) { trees[budget == 0 ? 0 : 1].push_back(trace.tree.tokens); });
    EXPECT_GE(run(*engine, second).stats.num_cached_tokens, 128);
  }
  EXPECT_GT(trees[0].size(), 3u);
  EXPECT_EQ(trees[0], trees[1]);
}

TEST(EngineTest, SpeculationCanChangeBetweenRequests) {
  auto engine = make_tiny_engine({.speculative = plain()});
  const Finished expected = run(*engine, request_for("chat_tool", 24));
  for (const SpeculativeConfig& speculative : {chain(), tree(64), ngram(), plain()}) {
    engine->set_speculative(speculative);
    EXPECT_EQ(run(*engine, request_for("chat_tool", 24)).tokens, expected.tokens);
  }
}

// Places close up when sequences end, whatever the order.
TEST(EngineTest, ManyRequestsOverFewPlaces) {
  auto engine = make_tiny_engine({.speculative = tree(8), .max_num_seqs = 3, .num_kv_blocks = 20});
  std::vector<Finished> results(9);
  std::vector<std::vector<std::int32_t>> alone;
  const char* names[] = {"code_short", "chat_code", "chat_arithmetic"};
  for (const char* name : names) alone.push_back(run(*engine, request_for(name, 40)).tokens);
  for (std::size_t i = 0; i < results.size(); ++i)
    add(*engine, request_for(names[i % 3], 5 + 35 * static_cast<std::int64_t>(i % 2)), results[i]);
  while (engine->step()) {
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    auto expected = alone[i % 3];
    expected.resize(i % 2 == 0 ? 5 : 40);
    EXPECT_EQ(results[i].tokens, expected) << i;
  }
}

}  // namespace
}  // namespace coppice
