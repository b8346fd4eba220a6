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

std::unique_ptr<Engine> make_engine(std::shared_ptr<const OracleScript> script,
                                    std::int64_t chunk) {
  EngineConfig config;
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = chunk;
  config.max_model_len = 256;
  config.enable_prefix_caching = false;
  config.speculative = script ? tree(16) : plain();
  EngineParts parts;
  parts.clock = &kStillClock;
  parts.backend = make_backend({.device = "cpu", .num_threads = 1});
  ModelConfig model = kimi_k2_config(2, 16);
  model.vocab_size = 1024;
  const ModelOptions options{
      .max_rows = 128, .max_positions = 256, .parallel = {.rank = 3, .size = 8}};
  parts.model = make_random_model(*parts.backend, model, 5, options);
  if (script)
    parts.make_drafter = [script](Backend&) { return std::make_unique<OracleDrafter>(script); };
  return std::make_unique<Engine>(config, std::move(parts));
}

Request make_request(std::int64_t seed, double temperature) {
  std::vector<std::int32_t> prompt;
  for (std::int64_t i = 0; i < kPrompt; ++i)
    prompt.push_back(static_cast<std::int32_t>((i * i + seed) % 1024));
  Request request = greedy(prompt, kOutput);
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  request.sampling.ignore_eos = true;
  return request;
}

Trail decode(Engine& engine, const Request& request, bool with_stranger, bool preempted) {
  TrailRecorder recorder(engine);
  Finished result, other;
  if (with_stranger) add(engine, make_request(77, 1.0), other);
  const RequestId id = add(engine, request, result);
  for (int step = 0; engine.step(); ++step)
    if (preempted && step == 5) engine.preempt(id);
  Trail trail = recorder.trail(id);
  trail.tokens = result.tokens;
  trail.stats = result.stats;
  engine.set_commit_observer({});
  return trail;
}

TEST(ExactnessShapesTest, KimiK2LayersOfOneRank) {
  auto reference = make_engine(nullptr, 128);
  auto script = std::make_shared<OracleScript>();
  std::map<double, Trail> expected;
  const std::map<double, std::int64_t> seed_of = {{0.0, 8}, {0.8, 9}};
  for (const auto& [temperature, seed] : seed_of) {
    const Request request = make_request(seed, temperature);
    Trail& trail = expected[temperature] = decode(*reference, request, false, false);
    std::vector<std::int32_t>& truth = script->tokens_of_seed[seed];
    truth = request.prompt_token_ids;
    truth.insert(truth.end(), trail.tokens.begin(), trail.tokens.end());
  }
  auto engine = make_engine(script, 33);
  for (const auto& [temperature, seed] : seed_of)
    for (const bool with_others : {false, true}) {
      const Trail trail =
          decode(*engine, make_request(seed, temperature), with_others, with_others);
      EXPECT_FALSE(compare(expected[temperature], trail))
          << compare(expected[temperature], trail).what;
      EXPECT_GT(trail.stats.num_accepted_tokens, 5);
    }
}

}  // namespace
}  // namespace coppice
