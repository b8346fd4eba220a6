// The exactness test on layers of Kimi K2.6's own shapes, as one of eight tensor-parallel ranks
// holds them: random weights, and an oracle drafter so that paths are accepted.
#include <gtest/gtest.h>

#include "tests/engine/support/exactness.h"
#include "tests/engine/support/oracle_drafter.h"

namespace coppice {
namespace {

using namespace testing;

constexpr std::int64_t kPrompt = 70;  // past one block of the cache
constexpr std::int64_t kOutput = 20;
constexpr std::int64_t kVocab = 1024;
constexpr std::int64_t kNumSeeds = 10;
constexpr double kTemperatures[] = {0, 0.8};

// One dense layer and one of 16 experts.
ModelConfig rank_config() {
  ModelConfig model = kimi_k2_config(2, 16, 8);
  model.vocab_size = kVocab;
  return model;
}

TEST(ExactnessShapesTest, TheShapesAreThoseOfARank) {
  const ModelConfig model = rank_config();
  EXPECT_EQ(model.hidden_size, 7168);
  EXPECT_EQ(model.num_attention_heads, 8);
  EXPECT_EQ(model.q_lora_rank, 1536);
  EXPECT_EQ(model.kv_lora_rank, 512);
  EXPECT_EQ(model.qk_nope_head_dim, 128);
  EXPECT_EQ(model.qk_rope_head_dim, 64);
  EXPECT_EQ(model.v_head_dim, 128);
  EXPECT_EQ(model.moe_intermediate_size, 256);
  EXPECT_EQ(model.n_shared_experts, 1);
  EXPECT_EQ(model.num_experts_per_tok, 8);
  EXPECT_EQ(model.first_k_dense_replace, 1);
  EXPECT_EQ(model.intermediate_size, 2304);
}

enum class Draft { kNone, kChain, kTree, kNgram };

// One engine, and the ways to decode on it.
struct Way {
  std::string name;
  std::int64_t budget = 16;  // of a tree
  bool with_stranger = false;
  bool preempted = false;
};
struct EngineCase {
  Draft draft;
  std::int64_t chunk;
  int num_threads;
  std::vector<Way> ways;
};

std::vector<EngineCase> engine_cases() {
  return {
      {Draft::kNone, 7, 1, {{"plain, chunks of 7", 0}, {"plain preempted", 0, true, true}}},
      {Draft::kChain, 128, 1, {{"chain", 7}, {"chain with a stranger", 7, true}}},
      {Draft::kNgram, 50, 1, {{"ngram", 7}, {"ngram with a stranger", 7, true, true}}},
      {Draft::kTree,
       33,
       1,
       {{"tree 8", 8},
        {"tree 16", 16},
        {"tree 64", 64},
        {"tree 16 with a stranger", 16, true},
        {"tree 16 preempted", 16, false, true},
        {"tree 64 preempted, with a stranger", 64, true, true}}},
      {Draft::kTree, 128, 3, {{"tree 16, three threads", 16, true}}},
  };
}

// Prompt and continuation by seed.
using Truths = std::map<std::int64_t, std::vector<std::int32_t>>;

std::unique_ptr<Engine> make_engine(const EngineCase& engine_case, const Truths& truths) {
  EngineConfig config;
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = engine_case.chunk;
  config.max_model_len = 256;
  config.enable_prefix_caching = false;
  config.speculative = engine_case.draft == Draft::kNone    ? plain()
                       : engine_case.draft == Draft::kNgram ? ngram()
                                                            : tree(64);
  EngineParts parts;
  parts.clock = &kStillClock;
  parts.backend = make_backend({.device = test_device(), .num_threads = engine_case.num_threads});
  parts.model =
      make_random_model(*parts.backend, rank_config(), 5, {.max_rows = 160, .max_positions = 256});
  if (engine_case.draft == Draft::kChain || engine_case.draft == Draft::kTree) {
    const std::int64_t num_ranks = engine_case.draft == Draft::kChain ? 1 : 4;
    const auto oracle = std::make_shared<Oracle>(kNumSeeds, 256, kVocab, num_ranks);
    for (const auto& [seed, tokens] : truths) oracle->learn(seed, tokens);
    parts.make_drafter = [oracle](Backend& backend) {
      return std::make_unique<OracleDrafter>(backend, oracle, 2);
    };
  }
  return std::make_unique<Engine>(config, std::move(parts));
}

Request make_request(std::int64_t seed, double temperature) {
  std::vector<std::int32_t> prompt;
  for (std::int64_t i = 0; i < kPrompt; ++i)
    prompt.push_back(static_cast<std::int32_t>((i * i + seed) % kVocab));
  Request request = greedy(prompt, kOutput);
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  request.sampling.ignore_eos = true;
  return request;
}

// Text that repeats itself is made by keeping to a few tokens: else a prompt lookup never speaks.
Request request_at(double temperature, bool repetitive) {
  Request request = make_request(temperature == 0 ? 8 : 9, temperature);
  for (std::int64_t id = 1; repetitive && id < 4; ++id) request.sampling.logit_bias[100 * id] = 100;
  return request;
}

Trail decode(Engine& engine, const Way& way, Request request) {
  TrailRecorder recorder(engine);
  Finished result, other;
  if (way.with_stranger) add(engine, make_request(7, 1.0), other);
  if (way.budget > 0) request.ddtree_budget = way.budget;
  const RequestId id = add(engine, request, result);
  for (int step = 0; engine.step(); ++step)
    if (way.preempted && (step == 5 || step == 8)) engine.preempt(id);
  Trail trail = recorder.trail(id);
  trail.tokens = result.tokens;
  trail.stats = result.stats;
  engine.set_commit_observer({});
  return trail;
}

TEST(ExactnessShapesTest, EveryWayLeavesTheSameBits) {
  if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  Truths truths;
  std::map<std::pair<double, bool>, Trail> expected;
  {
    auto reference = make_engine({Draft::kNone, 128, 1, {}}, truths);
    for (const double temperature : kTemperatures)
      for (const bool repetitive : {true, false}) {
        const Request request = request_at(temperature, repetitive);
        Trail& trail = expected[{temperature, repetitive}] =
            decode(*reference, {"plain", 0}, request);
        std::vector<std::int32_t>& truth = truths[*request.sampling.seed];
        truth = request.prompt_token_ids;
        truth.insert(truth.end(), trail.tokens.begin(), trail.tokens.end());
      }
  }
  std::int64_t preemptions = 0;
  for (const EngineCase& engine_case : engine_cases()) {
    auto engine = make_engine(engine_case, truths);
    const bool is_ngram = engine_case.draft == Draft::kNgram;
    for (const Way& way : engine_case.ways)
      for (const double temperature : kTemperatures) {
        SCOPED_TRACE(way.name + ", temperature " + std::to_string(temperature));
        const Trail trail = decode(*engine, way, request_at(temperature, is_ngram));
        const Difference difference = compare(expected[{temperature, is_ngram}], trail);
        EXPECT_FALSE(difference) << difference.what;
        EXPECT_GT(trail.stats.num_accepted_tokens, engine_case.draft == Draft::kNone ? -1
                                                   : is_ngram                        ? 0
                                                                                     : 5);
        preemptions += trail.stats.num_preemptions;
      }
  }
  EXPECT_GT(preemptions, 8);
}

}  // namespace
}  // namespace coppice
