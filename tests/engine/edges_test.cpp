// Edges that other engines were reported to trip over (docs/field-bugs.md), on tiny-k2: lengths
// around a cache block and a prefill chunk, caches just large enough, prompts that share.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <set>

#include "base/error.h"
#include "tests/engine/support/exactness.h"

namespace coppice {
namespace {

using namespace testing;

// The first `length` tokens of a prompt of 257, again and again.
std::vector<std::int32_t> prompt_of(std::int64_t length) {
  static const std::vector<std::int32_t> all = golden_prompt("code_long");
  std::vector<std::int32_t> prompt;
  for (std::int64_t i = 0; i < length; ++i)
    prompt.push_back(all[static_cast<std::size_t>(i) % all.size()]);
  return prompt;
}

Request request_of(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  Request request = greedy(std::move(prompt), max_tokens);
  request.sampling.ignore_eos = true;
  return request;
}

Trail decode(Engine& engine, const Request& request) {
  TrailRecorder recorder(engine);
  Finished result;
  const RequestId id = add(engine, request, result);
  while (engine.step()) {
  }
  Trail trail = recorder.trail(id);
  trail.tokens = result.tokens;
  trail.stats = result.stats;
  engine.set_commit_observer({});
  return trail;
}

TEST(EdgesTest, PromptsAroundABlockInChunksOfEverySize) {
  const std::vector<std::int64_t> lengths = {1, 2, 63, 64, 65, 127, 128, 129};
  auto reference = make_tiny_engine({.speculative = plain(), .max_num_batched_tokens = 512});
  std::map<std::int64_t, Trail> expected;
  for (const std::int64_t length : lengths)
    expected[length] = decode(*reference, request_of(prompt_of(length), 9));
  for (const std::int64_t chunk : {1, 7, 64, 511})
    for (const SpeculativeConfig& speculative : {tree(16), chain(), ngram()}) {
      auto engine = make_tiny_engine({.speculative = speculative, .max_num_batched_tokens = chunk});
      for (const std::int64_t length : lengths) {
        const Trail trail = decode(*engine, request_of(prompt_of(length), 9));
        EXPECT_FALSE(compare(expected[length], trail))
            << length << " tokens in chunks of " << chunk << ", " << name_of(speculative.method)
            << ": " << compare(expected[length], trail).what;
      }
      EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0);
    }
}

// A prompt longer than one chunk behind a cached beginning of any number of blocks.
TEST(EdgesTest, ChunksBehindACachedPrefix) {
  auto reference = make_tiny_engine({.speculative = plain(), .max_num_batched_tokens = 512});
  const Trail expected = decode(*reference, request_of(prompt_of(250), 12));
  for (const std::int64_t chunk : {7, 64, 100})
    for (const std::int64_t blocks : {1, 2, 3}) {
      auto engine = make_tiny_engine({.speculative = tree(16),
                                      .max_num_batched_tokens = chunk,
                                      .enable_prefix_caching = true,
                                      .prefix_cache_exact = true});
      decode(*engine, request_of(prompt_of(blocks * kBlockSize), 1));
      const Trail trail = decode(*engine, request_of(prompt_of(250), 12));
      // The last row of a prompt is always computed, so a prompt of whole blocks leaves them all.
      EXPECT_EQ(trail.stats.num_cached_tokens, blocks * kBlockSize);
      EXPECT_FALSE(compare(expected, trail))
          << blocks << " blocks, chunk " << chunk << ": " << compare(expected, trail).what;
    }
}

// Sequences that end, or are cancelled, one token before a block's end, at it and after it.
TEST(EdgesTest, EndsAroundABlockFreeEachBlockOnce) {
  for (const SpeculativeConfig& speculative : {plain(), tree(16)})
    for (const bool caching : {false, true}) {
      auto engine =
          make_tiny_engine({.speculative = speculative, .enable_prefix_caching = caching});
      for (const std::int64_t total : {63, 64, 65, 127, 128, 129, 191, 192, 193}) {
        const std::int64_t prompt = total - 11;
        EXPECT_EQ(std::ssize(run(*engine, request_of(prompt_of(prompt), 11)).tokens), 11);
        EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0) << total;
        Finished cancelled;
        RequestId id = 0;
        id = engine->add_request(request_of(prompt_of(prompt), 300), [&](const RequestOutput& out) {
          if (out.stats->num_output_tokens >= 11) engine->cancel(id);
        });
        while (engine->step()) {
        }
        EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0) << total;
      }
    }
}

// The smallest cache that takes the request, and a tree larger than what is left in it.
TEST(EdgesTest, ATreeLargerThanTheRoomLeftChangesNothing) {
  auto reference = make_tiny_engine({.speculative = plain()});
  const Request request = request_of(prompt_of(100), 28);
  const Trail expected = decode(*reference, request);
  for (const SpeculativeConfig& speculative : {tree(64), tree(16), chain(), ngram()}) {
    std::int64_t blocks = 1;
    std::unique_ptr<Engine> engine;
    for (;; ++blocks) {
      ASSERT_LT(blocks, 12);
      engine = make_tiny_engine(
          {.speculative = speculative, .max_model_len = 128, .num_kv_blocks = blocks});
      try {
        const Trail trail = decode(*engine, request);
        EXPECT_FALSE(compare(expected, trail)) << compare(expected, trail).what;
        break;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      }
    }
    // Two of them cannot run at once: one waits or is preempted, both come out the same.
    Finished first, second;
    add(*engine, request, first);
    add(*engine, request, second);
    while (engine->step()) {
    }
    EXPECT_EQ(first.tokens, expected.tokens);
    EXPECT_EQ(second.tokens, expected.tokens);
    EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0);
  }
}

// What could never run is refused at once, with both numbers, and holds up nobody.
TEST(EdgesTest, ARequestLargerThanTheCacheIsRefusedAndTheNextOneRuns) {
  auto engine = make_tiny_engine({.speculative = plain(), .num_kv_blocks = 4});
  for (int i = 0; i < 3; ++i) {
    try {
      run(*engine, request_of(prompt_of(500), 8));
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      const std::string message = error.what();
      EXPECT_NE(message.find("508 tokens"), std::string::npos) << message;
      EXPECT_NE(message.find("the cache holds 4"), std::string::npos) << message;
    }
    EXPECT_EQ(std::ssize(run(*engine, request_of(prompt_of(50), 8)).tokens), 8);
    EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0);
  }
  for (const std::int64_t huge : {std::int64_t{1} << 32, INT64_MAX - 60, INT64_MAX})
    EXPECT_THROW(run(*engine, request_of(prompt_of(50), huge)), Error) << huge;
}

// Numbers of a flag or a file: out of range is one line naming the field, never a crash.
TEST(EdgesTest, ConfigurationsOutOfRangeAreRefusedByName) {
  const std::vector<std::pair<std::string, std::function<void(EngineConfig&)>>> cases = {
      {"ddtree_budget", [](auto& c) { c.speculative.ddtree_budget = -2; }},
      {"ddtree_budget", [](auto& c) { c.speculative.ddtree_budget = 1'000'000'000'000; }},
      {"max_ddtree_budget", [](auto& c) { c.speculative.max_ddtree_budget = 0; }},
      {"num_speculative_tokens", [](auto& c) { c.speculative.num_speculative_tokens = -5; }},
      {"num_speculative_tokens", [](auto& c) { c.speculative.num_speculative_tokens = INT64_MAX; }},
      {"prompt_lookup_min", [](auto& c) { c.speculative.prompt_lookup_min = 0; }},
      {"prompt_lookup_max", [](auto& c) { c.speculative.prompt_lookup_max = 1; }},
      {"prompt_lookup_max", [](auto& c) { c.speculative.prompt_lookup_max = INT64_MAX; }},
      {"draft_window_size", [](auto& c) { c.speculative.draft_window_size = -1; }},
      {"draft_attention_factor", [](auto& c) { c.speculative.draft_attention_factor = 0; }},
      {"draft_attention_factor", [](auto& c) { c.speculative.draft_attention_factor = NAN; }},
      {"max_model_len", [](auto& c) { c.max_model_len = -5; }},
      {"max_model_len", [](auto& c) { c.max_model_len = INT64_MAX; }},
      {"num_kv_blocks", [](auto& c) { c.num_kv_blocks = -1; }},
      {"num_kv_blocks", [](auto& c) { c.num_kv_blocks = INT64_MAX; }},
      {"kv_cache_bytes", [](auto& c) { c.kv_cache_bytes = -1; }},
      {"max_num_seqs", [](auto& c) { c.max_num_seqs = 0; }},
      {"max_num_seqs", [](auto& c) { c.max_num_seqs = INT64_MAX; }},
      {"max_num_batched_tokens", [](auto& c) { c.max_num_batched_tokens = 0; }},
      {"max_verify_rows", [](auto& c) { c.max_verify_rows = INT64_MAX; }},
      {"threads", [](auto& c) { c.num_threads = 100'000; }},
  };
  for (const auto& [field, spoil] : cases) {
    EngineConfig config;
    config.device = "cpu";
    config.model = kTinyK2;
    spoil(config);
    try {
      Engine::load(config);
      ADD_FAILURE() << field << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      EXPECT_EQ(std::string(error.what()).find(field), 0u) << error.what();
    }
  }
}

TEST(EdgesTest, AChainIsAsLongAsAsked) {
  for (const SpeculativeMethod method : {SpeculativeMethod::kChain, SpeculativeMethod::kNgram}) {
    auto engine =
        make_tiny_engine({.speculative = {.method = method, .num_speculative_tokens = 2}});
    std::size_t longest = 0;
    engine->set_round_observer([&](const RoundTrace& trace) {
      longest = std::max(longest, trace.tree.tokens.size() - 1);
    });
    run(*engine, request_of(golden_prompt("code_short"), 60));
    EXPECT_EQ(longest, 2u) << name_of(method);
  }
}

// Eight equal prompts in one step: nobody may read a block that is not filled yet.
TEST(EdgesTest, EqualPromptsInOneStepEqualOneAlone) {
  auto reference = make_tiny_engine({.speculative = plain()});
  const Request request = request_of(prompt_of(200), 20);
  const std::vector<std::int32_t> expected = run(*reference, request).tokens;
  for (const std::int64_t chunk : {64, 512}) {
    auto engine = make_tiny_engine({.speculative = tree(8),
                                    .max_num_seqs = 8,
                                    .max_num_batched_tokens = chunk,
                                    .enable_prefix_caching = true,
                                    .prefix_cache_exact = true});
    for (int round = 0; round < 2; ++round) {
      std::vector<Finished> results(8);
      for (Finished& result : results) add(*engine, request, result);
      while (engine->step()) {
      }
      for (const Finished& result : results) EXPECT_EQ(result.tokens, expected);
    }
    EXPECT_EQ(engine->metrics().num_kv_blocks_used, 0);
  }
}

// A prompt cancelled or put back between two chunks: the next one finds what was computed, no more.
TEST(EdgesTest, AnUnfinishedPromptSharesOnlyWhatItComputed) {
  auto reference = make_tiny_engine({.speculative = plain()});
  const Request request = request_of(prompt_of(250), 20);
  const std::vector<std::int32_t> expected = run(*reference, request).tokens;
  for (const int steps : {1, 2, 3})
    for (const bool cancelled : {true, false}) {
      auto engine = make_tiny_engine({.speculative = tree(8),
                                      .max_num_batched_tokens = 64,
                                      .enable_prefix_caching = true,
                                      .prefix_cache_exact = true});
      Finished first;
      const RequestId id = add(*engine, request, first);
      for (int step = 0; step < steps; ++step) engine->step();
      EXPECT_TRUE(cancelled ? engine->cancel(id) : engine->preempt(id));
      const Finished second = run(*engine, request);
      EXPECT_EQ(second.tokens, expected) << steps << " chunks";
      if (cancelled) {
        EXPECT_EQ(second.stats.num_cached_tokens, 64 * steps);
      } else {
        EXPECT_EQ(first.tokens, expected) << steps << " chunks, then preempted";
      }
    }
}

// Chats that come back with the answer in their prompt, as it was or as another tokenisation would
// have it, and that branch off again: each turn equals a cold engine's, and drafts as well.
TEST(EdgesTest, TurnsOfAChatEqualColdOnes) {
  const TinyOptions options{
      .speculative = tree(16), .enable_prefix_caching = true, .prefix_cache_exact = true};
  auto warm = make_tiny_engine(options);
  std::int64_t cached = 0;
  std::vector<std::int32_t> chat = prompt_of(150);
  for (int turn = 0; turn < 6; ++turn) {
    auto cold = make_tiny_engine(options);
    const Finished expected = run(*cold, request_of(chat, 40));
    const Finished result = run(*warm, request_of(chat, 40));
    EXPECT_EQ(result.tokens, expected.tokens) << "turn " << turn;
    EXPECT_EQ(result.tokens_per_output, expected.tokens_per_output) << "turn " << turn;
    cached += result.stats.num_cached_tokens;
    // The first turn again with another last sentence.
    std::vector<std::int32_t> other = prompt_of(140);
    other.insert(other.end(), 10, 40 + turn);
    EXPECT_EQ(run(*warm, request_of(other, 12)).tokens, run(*cold, request_of(other, 12)).tokens);
    chat.insert(chat.end(), result.tokens.begin(), result.tokens.end());
    if (turn % 2 == 1) chat[chat.size() - 20] = 65;
    chat.insert(chat.end(), 10, 70 + turn);
  }
  EXPECT_GT(cached, 5 * 128);
}

TEST(EdgesTest, TemperatureAndSeedReachTheVerification) {
  auto engine = make_tiny_engine({.speculative = tree(16)});
  Request request = request_of(golden_prompt("code_short"), 16);
  const std::vector<std::int32_t> certain = run(*engine, request).tokens;
  request.sampling.temperature = 1.5;
  request.sampling.seed = 3;
  request.sampling.top_k = 1;
  EXPECT_EQ(run(*engine, request).tokens, certain);
  request.sampling.top_k = -1;
  const auto distinct_texts = [&](double temperature) {
    std::set<std::vector<std::int32_t>> texts;
    for (std::int64_t seed = 0; seed < 20; ++seed) {
      request.sampling.temperature = temperature;
      request.sampling.seed = seed;
      texts.insert(run(*engine, request).tokens);
    }
    return texts.size();
  };
  EXPECT_GT(distinct_texts(2.0), 15u);
  EXPECT_LT(distinct_texts(0.05), 6u);
}

}  // namespace
}  // namespace coppice
