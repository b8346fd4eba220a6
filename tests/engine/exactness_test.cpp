// Same request, same seed, same bits: the keys of every committed token in all layers and its
// logits are equal for every way to decode it. COPPICE_EXACTNESS_PROMPTS widens the run to that
// many of 200 prompts (scripts/exactness.sh spreads them over processes by
// COPPICE_EXACTNESS_SHARD=i/n: prompts i, i + n, ...).
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "io/json.h"
#include "tests/engine/support/exactness.h"
#include "tests/engine/support/oracle_drafter.h"

namespace coppice {
namespace {

using namespace testing;

constexpr std::int64_t kVocabSize = 5376, kMaxLen = 2048;  // of tiny-k2
constexpr std::int64_t kSeed = 3;  // of the request; strangers have the seeds below

struct Prompt {
  std::string name;
  std::vector<std::int32_t> tokens;
};

std::int64_t wide_run() {
  const char* count = std::getenv("COPPICE_EXACTNESS_PROMPTS");
  return count == nullptr ? 0 : std::atoll(count);
}

// The 192 held-out prompts of the small model, their kinds in turn, and the golden prompts but the
// shortest, cut to 100 tokens: 200.
std::vector<Prompt> wide_prompts() {
  std::vector<Prompt> all;
  const Json acceptance = read_json_file(source_dir() + "/tests/golden/tiny-k2/acceptance.json");
  for (std::size_t i = 0; i < 64; ++i)
    for (const auto& [kind, list] : acceptance.find("prompts")->as_object()) {
      Prompt& prompt = all.emplace_back(Prompt{kind + " " + std::to_string(i), {}});
      for (const Json& token : list.as_array()[i].as_array())
        prompt.tokens.push_back(static_cast<std::int32_t>(token.as_int()));
    }
  for (std::size_t i = 1; i < std::size(kGoldenPrompts); ++i) {
    Prompt& prompt = all.emplace_back(
        Prompt{std::string("start of ") + kGoldenPrompts[i], golden_prompt(kGoldenPrompts[i])});
    prompt.tokens.resize(std::min<std::size_t>(prompt.tokens.size(), 100));
  }
  return all;
}

// This process's share of the first wide_run() prompts.
std::vector<Prompt> shard(const std::vector<Prompt>& all) {
  std::int64_t index = 0, count = 1;
  if (const char* text = std::getenv("COPPICE_EXACTNESS_SHARD"); text != nullptr) {
    char* end = nullptr;
    index = std::strtoll(text, &end, 10);
    count = *end == '/' ? std::strtoll(end + 1, nullptr, 10) : 0;
    COPPICE_CHECK(index >= 0 && index < count, "COPPICE_EXACTNESS_SHARD is i/n, not ", text);
  }
  std::vector<Prompt> mine;
  for (std::int64_t i = index; i < std::min(std::ssize(all), wide_run()); i += count)
    mine.push_back(all[static_cast<std::size_t>(i)]);
  return mine;
}

const std::vector<Prompt>& prompts() {
  static const std::vector<Prompt> chosen = [] {
    if (wide_run() > 0) return shard(wide_prompts());
    std::vector<Prompt> two;
    for (const char* name : {"code_long", "chat_tool"}) two.push_back({name, golden_prompt(name)});
    return two;
  }();
  return chosen;
}

Request make_request(const Prompt& prompt, double temperature) {
  Request request{.prompt_token_ids = prompt.tokens};
  request.sampling.temperature = temperature;
  request.sampling.seed = kSeed;
  request.sampling.max_tokens = wide_run() > 0 ? 128 : 48;
  request.sampling.ignore_eos = true;
  if (temperature > 0) {
    request.sampling.top_p = 0.95;
    request.sampling.repetition_penalty = 1.1;  // counts along each node's own path
  }
  return request;
}

// One way to decode: an engine, and what else goes on while the request runs.
struct Way {
  std::string name;
  TinyOptions options;
  std::int64_t num_strangers = 0;
  std::vector<std::int64_t> preempt_after_steps = {};
};

Trail decode(Engine& engine, const Way& way, const Request& request) {
  TrailRecorder recorder(engine);
  std::vector<std::unique_ptr<Finished>> others;
  for (std::int64_t i = 0; i < way.num_strangers; ++i) {
    const auto name = kGoldenPrompts[static_cast<std::size_t>(i % 4 + 2)];
    Request stranger = greedy(golden_prompt(name), 30 + 11 * i);
    stranger.sampling.temperature = i % 2 == 0 ? 0.9 : 0;
    stranger.sampling.seed = i;
    stranger.ddtree_budget = 5 * i;
    add(engine, stranger, *others.emplace_back(std::make_unique<Finished>()));
  }
  Finished result;
  const RequestId id = add(engine, request, result);
  std::int64_t step = 0;
  do {
    if (std::find(way.preempt_after_steps.begin(), way.preempt_after_steps.end(), step) !=
        way.preempt_after_steps.end())
      engine.preempt(id);
    ++step;
  } while (engine.step());
  Trail trail = recorder.trail(id);
  trail.tokens = result.tokens;
  trail.stats = result.stats;
  engine.set_commit_observer({});
  return trail;
}

std::unique_ptr<Backend> eager(std::unique_ptr<Backend> inner) {
  return std::make_unique<EagerBackend>(std::move(inner));
}

std::vector<Way> ways() {
  std::vector<Way> all = {
      {"chain", {.speculative = chain()}},
      {"tree 8", {.speculative = tree(8)}},
      {"tree 16", {.speculative = tree(16)}},
      {"tree 64", {.speculative = tree(64)}},
      {"tree auto", {.speculative = tree(kAutoBudget)}},
      {"ngram", {.speculative = ngram()}},
      {"chunks of 7", {.speculative = plain(), .max_num_batched_tokens = 7}},
      {"tree, chunks of 50", {.speculative = tree(12), .max_num_batched_tokens = 50}},
      {"tree with strangers", {.speculative = tree(16)}, 3},
      {"plain with strangers", {.speculative = plain(), .max_num_batched_tokens = 64}, 3},
      {"plain preempted", {.speculative = plain()}, 0, {0, 1, 2, 9, 30}},
      {"tree preempted", {.speculative = tree(16), .max_num_batched_tokens = 40}, 1, {1, 4, 9, 15}},
      {"tree, three threads", {.num_threads = 3, .speculative = tree(16)}},
      {"exact prefix cache",
       {.speculative = tree(8), .enable_prefix_caching = true, .prefix_cache_exact = true}},
      {"exact prefix cache preempted",
       {.speculative = tree(8), .enable_prefix_caching = true, .prefix_cache_exact = true},
       2,
       {3, 12}},
      {"tree, op by op", {.speculative = tree(16), .wrap_backend = eager}},
      {"tree with strangers, op by op", {.speculative = tree(16), .wrap_backend = eager}, 3},
      {"tight cache", {.speculative = tree(16), .num_kv_blocks = 12}, 3},
  };
  return all;
}

class ExactnessTest : public ::testing::TestWithParam<double> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(ExactnessTest, EveryWayLeavesTheSameBits) {
  auto reference = make_tiny_engine({.speculative = plain()});
  std::map<std::string, Trail> expected;
  std::int64_t uncertain = 0;  // prompts whose sampled text is not the greedy one
  for (const Prompt& prompt : prompts()) {
    const Request request = make_request(prompt, GetParam());
    expected[prompt.name] = decode(*reference, {}, request);
    const Trail certain = decode(*reference, {}, make_request(prompt, 0));
    uncertain += expected[prompt.name].tokens != certain.tokens ? 1 : 0;
    ASSERT_EQ(std::ssize(expected[prompt.name].tokens), request.sampling.max_tokens);
  }
  // The few prompts of a shard may all be certain.
  EXPECT_TRUE((uncertain > 0) == (GetParam() > 0) || (wide_run() > 0 && uncertain == 0));
  std::int64_t preemptions = 0, cached = 0, rows = 0;
  for (const Way& way : ways()) {
    auto engine = make_tiny_engine(way.options);
    for (const Prompt& prompt : prompts()) {
      const Trail trail = decode(*engine, way, make_request(prompt, GetParam()));
      EXPECT_FALSE(compare(expected[prompt.name], trail))
          << way.name << ", " << prompt.name << ": " << compare(expected[prompt.name], trail).what;
      preemptions += trail.stats.num_preemptions;
      rows += std::ssize(trail.rows);
      // Again, with whatever the first run left in the cache.
      if (!way.options.enable_prefix_caching) continue;
      const Trail again = decode(*engine, way, make_request(prompt, GetParam()));
      EXPECT_FALSE(compare(expected[prompt.name], again)) << way.name << " again";
      cached += again.stats.num_cached_tokens;
    }
    if (wide_run() > 0) std::cout << "way done: " << way.name << std::endl;
  }
  std::cout << prompts().size() << " prompts, " << ways().size() << " ways, " << rows
            << " rows of keys and logits compared, " << uncertain << " texts not the greedy one\n";
  EXPECT_GT(preemptions, 3 * std::ssize(prompts()));
  // The held-out prompts are shorter than a block.
  EXPECT_TRUE(cached > 0 || wide_run() > 0);
}

constexpr std::int64_t kOracleBudget = 24;

TEST_P(ExactnessTest, ScatteredPathsOfAnOracleLeaveTheSameBits) {
  auto reference = make_tiny_engine({.speculative = plain()});
  for (const Prompt& prompt : prompts()) {
    const Request request = make_request(prompt, GetParam());
    const Trail expected = decode(*reference, {}, request);
    std::vector<std::int32_t> truth = prompt.tokens;
    truth.insert(truth.end(), expected.tokens.begin(), expected.tokens.end());
    auto oracle = std::make_shared<Oracle>(kSeed + 1, kMaxLen, kVocabSize);
    oracle->learn(kSeed, truth);
    auto engine = make_tiny_engine(
        {.speculative = tree(kOracleBudget), .make_drafter = [&](Backend& backend) {
           return std::make_unique<OracleDrafter>(backend, oracle, 4);
         }});
    const Trail trail = decode(*engine, {.name = "", .options = {}, .num_strangers = 1}, request);
    EXPECT_FALSE(compare(expected, trail)) << prompt.name << ": " << compare(expected, trail).what;
    const Oracle::Expected planted =
        oracle->expect(kSeed, truth, std::ssize(prompt.tokens), kOracleBudget);
    EXPECT_EQ(trail.stats.num_rounds, planted.rounds);
    EXPECT_EQ(trail.stats.num_accepted_tokens, planted.accepted);
    EXPECT_GT(planted.accepted, planted.rounds);
  }
}

INSTANTIATE_TEST_SUITE_P(Temperatures, ExactnessTest, ::testing::Values(0.0, 0.8),
                         [](const auto& param) {
                           return param.param == 0.0 ? std::string("greedy") : std::string("T08");
                         });

// ---- The comparison must be able to fail: each fault is what a real kernel might do, and changes
// no more than the last bit of a result.

enum class Fault {
  kLinearByRows,      // K segments follow from the number of rows
  kExpertsByRows,     // the order of a reduction follows from the number of rows
  kNormByRows,        // a norm's threads follow from the number of rows
  kAttentionByBatch,  // attention splits a row's keys by the batch
  kUnmaskedPadding,   // a padded row that holds NaN is multiplied by zero
  kSiblingKey,        // a node sees the row before it in place of its parent
};

class FaultyBackend : public OpRecorder {
 public:
  FaultyBackend(std::unique_ptr<Backend> inner, Fault fault)
      : OpRecorder(std::move(inner)), fault_(fault) {}

  void linear(const LinearArgs& args) override {
    ForwardingBackend::linear(args);
    if (fault_ == Fault::kLinearByRows && args.provenance == Provenance::kDecided &&
        args.x.shape(0) > 4)
      nudge(args.out);
    if (fault_ == Fault::kUnmaskedPadding && verifying_ && args.x.shape(0) > 4)
      leak_padding(args.out);
    note("linear", args.out);
  }
  void rms_norm(const RmsNormArgs& args) override {
    ForwardingBackend::rms_norm(args);
    if (fault_ == Fault::kNormByRows && verifying_ && args.x.shape(0) > 8) nudge(args.out);
    note("rms_norm", args.out);
  }
  void moe_experts(const MoeExpertsArgs& args) override {
    ForwardingBackend::moe_experts(args);
    if (fault_ == Fault::kExpertsByRows && args.provenance == Provenance::kDecided &&
        args.x.shape(0) > 1)
      nudge(args.out);
    note("moe_experts", args.out);
  }
  void mla_attention(const MlaAttentionArgs& args) override {
    ForwardingBackend::mla_attention(args);
    if (fault_ == Fault::kAttentionByBatch && verifying_ &&
        args.metadata->block_tables.shape(0) > 1)
      nudge(args.out);
    note("mla_attention", args.out);
  }
  void compile_tree(const CompileTreeArgs& args) override {
    ForwardingBackend::compile_tree(args);
    verifying_ = true;
    if (fault_ != Fault::kSiblingKey) return;
    const auto lengths = read_values<std::int32_t>(*this, args.path_len);
    const auto slots = read_values<std::int32_t>(*this, args.slots);
    auto paths = read_values<std::int32_t>(*this, args.path);
    const auto max_path = static_cast<std::size_t>(args.path.shape(1));
    for (std::size_t t = 1; t < lengths.size(); ++t)
      if (lengths[t] > 2)
        paths[t * max_path + static_cast<std::size_t>(lengths[t]) - 2] = slots[t - 1];
    upload(args.path, paths.data());
  }
  void accept_path(const AcceptPathArgs& args) override {
    OpRecorder::accept_path(args);
    verifying_ = false;
  }

 private:
  // The last bit of every element: what another order of a sum does, and no more.
  void nudge(const Tensor& out) {
    std::vector<std::byte> bytes = read_bytes(*this, out);
    for (std::size_t at = 0; at < bytes.size(); at += size_of(out.dtype()))
      bytes[at] ^= std::byte{1};
    upload(out, bytes.data());
  }
  // A padded row that holds NaN, multiplied by zero and added to every row.
  void leak_padding(const Tensor& out) {
    std::vector<std::byte> bytes = read_bytes(*this, out);
    std::fill(bytes.begin(), bytes.end(), std::byte{0xff});  // NaN
    upload(out, bytes.data());
  }
  bool verifying_ = false;
  Fault fault_;
};

TEST(ExactnessFaultTest, PlantedFaultsAreFoundAndTheFirstOpIsNamed) {
  if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  const Request request = make_request(prompts()[0], 0);
  OpRecorder* reference_ops = nullptr;
  auto reference = make_tiny_engine({.speculative = plain(), .wrap_backend = [&](auto inner) {
                                       auto made = std::make_unique<OpRecorder>(std::move(inner));
                                       reference_ops = made.get();
                                       return made;
                                     }});
  const Trail expected = decode(*reference, {}, request);
  const std::vector<std::pair<Fault, std::string>> faults = {
      {Fault::kLinearByRows, "linear"},           {Fault::kExpertsByRows, "moe_experts"},
      {Fault::kNormByRows, "rms_norm"},           {Fault::kAttentionByBatch, "mla_attention"},
      {Fault::kUnmaskedPadding, "number of ops"},  // a row that is not finite is never accepted
      {Fault::kSiblingKey, "mla_attention"}};
  for (const auto& [fault, op] : faults) {
    OpRecorder* ops = nullptr;
    auto engine = make_tiny_engine({.speculative = tree(16), .wrap_backend = [&](auto inner) {
                                      auto made =
                                          std::make_unique<FaultyBackend>(std::move(inner), fault);
                                      ops = made.get();
                                      return made;
                                    }});
    const Difference difference = compare(
        expected, decode(*engine, {.name = "", .options = {}, .num_strangers = 1}, request));
    ASSERT_TRUE(difference) << "fault " << static_cast<int>(fault) << " on " << op
                            << " was not found";
    ASSERT_GE(difference.position, 0) << difference.what;
    const std::string first = OpRecorder::first_difference(
        reference_ops->ops(kSeed, difference.position), ops->ops(kSeed, difference.position));
    EXPECT_NE(first.find(op), std::string::npos) << "first differing op: " << first;
  }
}

}  // namespace
}  // namespace coppice
