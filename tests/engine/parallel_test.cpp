// Tensor parallelism end to end: within one number of ranks every way to decode leaves the same
// bits, all ranks hold the same trees, tokens, keys and logits at every step, and a rank that fails
// ends the engine by its name. With COPPICE_TEST_DEVICE=cuda ranks are GPUs, and all but the wrong
// sum and the wrong choice run there.
#include <gtest/gtest.h>

#include <chrono>

#include "comm/rank_threads.h"
#include "tests/engine/support/exactness.h"
#include "tests/support/sanitized.h"

namespace coppice {
namespace {

using namespace testing;

// Hashes what must be the same on every rank, in order.
class RankRecorder : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  using Notes = std::vector<std::pair<std::string, std::uint64_t>>;

  const Notes& notes() const { return notes_; }

  // It reads back between ops.
  void run_graph(const GraphKey&, const std::function<void()>& body) override { body(); }
  void all_reduce(const AllReduceArgs& args) override {
    inner_->all_reduce(args);
    note("sum over ranks", args.x);
  }
  // Fused ops are recorded step by step.
  void sum_add_rms_norm(const AddRmsNormArgs& args) override { Backend::sum_add_rms_norm(args); }
  void moe_block(const MoeBlockArgs& args) override { Backend::moe_block(args); }
  void mla_queries(const MlaQueriesArgs& args) override { Backend::mla_queries(args); }
  void moe_route(const MoeRouteArgs& args) override {
    inner_->moe_route(args);
    note("experts", args.topk_ids);
    note("expert weights", args.topk_weights);
  }
  void mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) override {
    inner_->mla_rope_and_write_kv(args);
    const Tensor& cache = args.cache;
    const Tensor rows = cache.reshape({cache.shape(0) * cache.shape(1), cache.shape(2)});
    for (const std::int32_t slot : read_values<std::int32_t>(*inner_, args.slots))
      if (slot >= 0) note("keys", rows.rows(slot, 1));
  }
  void compile_tree(const CompileTreeArgs& args) override {
    inner_->compile_tree(args);
    note("tree tokens", args.trees.tokens);
    note("tree parents", args.trees.parents);
    note("tree scores", args.trees.scores);
    note("tree sizes", args.trees.counts);
  }
  void sample_rows(const SampleRowsArgs& args) override {
    note("logits", args.logits);
    inner_->sample_rows(args);
    note("choices", args.choices);
  }
  void accept_path(const AcceptPathArgs& args) override {
    inner_->accept_path(args);
    note("tokens", args.emitted);
  }

 private:
  void note(const char* what, const Tensor& tensor) {
    const std::vector<std::byte> bytes = read_bytes(*inner_, tensor);
    notes_.emplace_back(what, hash_bytes(bytes.data(), bytes.size()));
  }
  Notes notes_;
};

// Empty when they are equal.
std::string first_difference(const RankRecorder::Notes& a, const RankRecorder::Notes& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (a[i] != b[i]) return b[i].first;
  return a.size() == b.size() ? "" : "their number";
}

struct Way {
  std::string name;
  SpeculativeConfig speculative;
  std::int64_t num_strangers = 0;
  std::int64_t chunk = 256;
};

Trail decode(Engine& engine, const Request& request, std::int64_t num_strangers = 0) {
  TrailRecorder recorder(engine);
  std::vector<std::unique_ptr<Finished>> others;
  for (std::int64_t i = 0; i < num_strangers; ++i)
    add(engine, greedy(golden_prompt(kGoldenPrompts[static_cast<std::size_t>(i + 2)]), 20 + 9 * i),
        *others.emplace_back(std::make_unique<Finished>()));
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

std::vector<Request> requests() {
  std::vector<Request> all = {greedy(golden_prompt("code_long"), 24),
                              greedy(golden_prompt("chat_tool"), 24),
                              greedy(golden_prompt("chat_tool"), 16)};
  all[1].sampling.temperature = 0.8;
  all[1].sampling.seed = 3;
  all[1].sampling.top_p = 0.95;
  all[1].sampling.repetition_penalty = 1.1;
  // Masks are filled by rank 0 for all.
  for (std::int32_t id = 0; id < 3000; ++id) all[2].sampling.allowed_token_ids.push_back(id);
  return all;
}

// Why so many ranks cannot run on the tests' device; empty when they can.
std::string why_no_ranks(std::int64_t size) {
  try {
    check_rank_devices(test_device(), size);
  } catch (const Error& error) {
    return error.what();
  }
  return why_no_device();
}

class ParallelEngineTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_ranks(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

std::vector<Way> ways() {
  std::vector<Way> all = {{"chain", chain()},
                          {"tree 16", tree(16)},
                          {"tree auto", tree(kAutoBudget)},
                          {"ngram", ngram()},
                          {"tree with strangers, chunks of 50", tree(12), 3, 50}};
  if (kSanitized) all.erase(all.begin(), all.begin() + 3);
  return all;
}

std::vector<Trail> plain_trails(std::int64_t num_ranks) {
  auto engine = make_tiny_engine({.speculative = plain(), .tensor_parallel_size = num_ranks});
  std::vector<Trail> trails;
  for (const Request& request : requests()) trails.push_back(decode(*engine, request));
  return trails;
}

TEST_P(ParallelEngineTest, EveryWayLeavesTheSameBitsAndAllRanksAgree) {
  const std::vector<Trail> expected = plain_trails(GetParam());
  for (const Way& way : ways()) {
    std::vector<RankRecorder*> ranks(static_cast<std::size_t>(GetParam()));
    auto engine = make_tiny_engine({.speculative = way.speculative,
                                    .max_num_batched_tokens = way.chunk,
                                    .tensor_parallel_size = GetParam(),
                                    .wrap_rank = [&](std::int64_t rank, auto inner) {
                                      auto made = std::make_unique<RankRecorder>(std::move(inner));
                                      ranks[static_cast<std::size_t>(rank)] = made.get();
                                      return made;
                                    }});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const Trail trail = decode(*engine, requests()[i], way.num_strangers);
      EXPECT_FALSE(compare(expected[i], trail))
          << way.name << ", request " << i << ": " << compare(expected[i], trail).what;
    }
    EXPECT_GT(ranks[0]->notes().size(), 1000u);
    for (const RankRecorder* rank : ranks)
      EXPECT_EQ(first_difference(ranks[0]->notes(), rank->notes()), "") << way.name;
  }
}

// No graph runs under a recorder.
TEST_P(ParallelEngineTest, EveryWayLeavesTheSameBitsInGraphs) {
  if (test_device().starts_with("cpu")) GTEST_SKIP() << "rounds run at once on a CPU";
  const std::vector<Trail> expected = plain_trails(GetParam());
  for (const Way& way : ways()) {
    auto engine = make_tiny_engine({.speculative = way.speculative,
                                    .max_num_batched_tokens = way.chunk,
                                    .tensor_parallel_size = GetParam()});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const Trail trail = decode(*engine, requests()[i], way.num_strangers);
      EXPECT_FALSE(compare(expected[i], trail))
          << way.name << ", request " << i << ": " << compare(expected[i], trail).what;
      // Without an observer rounds are launched ahead.
      EXPECT_EQ(run(*engine, requests()[i]).tokens, expected[i].tokens) << way.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelEngineTest, ::testing::Values(2, 4));

// ---- Planted faults

// Spoils one op on its rank: one call, or all sums from one on (a single sum may be one that nobody
// reads).
class FaultyRank : public RankRecorder {
 public:
  enum class Fault { kNone, kSum, kChoice, kThrow };
  FaultyRank(std::unique_ptr<Backend> inner, Fault fault)
      : RankRecorder(std::move(inner)), fault_(fault) {}

  void all_reduce(const AllReduceArgs& args) override {
    if (fault_ == Fault::kThrow && calls_++ == 30)
      throw Error(ErrorKind::kUnavailable, "cuda: the device is lost");
    RankRecorder::all_reduce(args);
    if (fault_ == Fault::kSum && calls_++ >= 30) args.x.data<float>()[5] += 1e-4f;
  }
  void sample_rows(const SampleRowsArgs& args) override {
    RankRecorder::sample_rows(args);
    if (fault_ == Fault::kChoice && calls_++ == 5) args.choices.data<std::int32_t>()[0] += 1;
  }

 private:
  Fault fault_;
  int calls_ = 0;
};

// Runs a request on two ranks, the second of which has the fault; the error of the engine, if any,
// and where the ranks' records part.
struct Outcome {
  std::string error, again, difference;
  double seconds = 0;
};
Outcome run_with(FaultyRank::Fault fault, const std::string& device = "cpu") {
  std::array<FaultyRank*, 2> ranks{};
  auto engine =
      make_tiny_engine({.device = device,
                        .speculative = tree(16),
                        .tensor_parallel_size = 2,
                        .wrap_rank = [&](std::int64_t rank, auto inner) {
                          auto made = std::make_unique<FaultyRank>(
                              std::move(inner), rank == 1 ? fault : FaultyRank::Fault::kNone);
                          ranks[static_cast<std::size_t>(rank)] = made.get();
                          return made;
                        }});
  Outcome outcome;
  const auto error_of_step = [&]() -> std::string {
    try {
      while (engine->step()) {
      }
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Finished result;
  add(*engine, greedy(golden_prompt("code_long"), 40), result);
  const SteadyClock clock;
  const std::int64_t start = clock.now_ns();
  outcome.error = error_of_step();
  outcome.seconds = static_cast<double>(clock.now_ns() - start) / 1e9;
  if (!outcome.error.empty()) outcome.again = error_of_step();
  outcome.difference = first_difference(ranks[0]->notes(), ranks[1]->notes());
  return outcome;
}

TEST(ParallelFaultTest, AWrongSumOnOneRankIsSeen) {
  EXPECT_EQ(run_with(FaultyRank::Fault::kNone).difference, "");
  EXPECT_NE(run_with(FaultyRank::Fault::kSum).difference, "");
}

TEST(ParallelFaultTest, RanksThatEmitDifferentTokensEndTheEngine) {
  const Outcome outcome = run_with(FaultyRank::Fault::kChoice);
  EXPECT_NE(outcome.error.find("rank 1 emitted other tokens than rank 0"), std::string::npos)
      << outcome.error;
  EXPECT_EQ(outcome.again, outcome.error);
}

TEST(ParallelFaultTest, ARankThatThrowsEndsTheEngineByItsName) {
  if (const std::string why = why_no_ranks(2); !why.empty()) GTEST_SKIP() << why;
  const Outcome outcome = run_with(FaultyRank::Fault::kThrow, test_device());
  EXPECT_EQ(outcome.error, "rank 1: cuda: the device is lost");
  EXPECT_EQ(outcome.again, outcome.error);
  // At once, not when the others have waited long enough.
  const std::chrono::duration<double> deadline =
      test_device().starts_with("cpu") ? std::chrono::milliseconds(kPatience) : kRankDeadline;
  EXPECT_LT(outcome.seconds, deadline.count());
}

TEST(ParallelLoadTest, ANumberOfRanksThatDoesNotSplitTheModelIsRefusedInOneLine) {
  const auto error_of = [](std::int64_t size) -> std::string {
    EngineConfig config;
    config.model = kTinyK2;
    config.device = "cpu";
    config.tensor_parallel_size = size;
    try {
      Engine::load(config);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(3), "tensor parallel size 3 does not split num_attention_heads 8");
  EXPECT_EQ(error_of(8),
            "tensor parallel size 8 does not split moe_intermediate_size 128 into multiples of 32");
  EXPECT_EQ(error_of(0), "tensor_parallel_size is 0: must be at least 1 and at most 64");
}

TEST(ParallelLoadTest, RanksWithoutAGpuEachAreRefusedInOneLine) {
  const auto error_of = [](const std::string& device, std::int64_t size) -> std::string {
    try {
      check_rank_devices(device, size);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of("cpu", 64), "");
  EXPECT_EQ(error_of("cuda:1", 1), "");
  EXPECT_EQ(error_of("cuda:1", 2),
            "tensor parallel size 2: device 'cuda:1' is one GPU; 'cuda' takes the first 2");
  if (test_device() != "cuda" || !why_no_device().empty()) return;
  EXPECT_TRUE(error_of("cuda", 64).starts_with("tensor parallel size 64: this machine has "));
}

TEST(ParallelLoadTest, EngineLoadsItsOwnRanks) {
  if (const std::string why = why_no_ranks(2); !why.empty()) GTEST_SKIP() << why;
  EngineConfig config;
  config.model = kTinyK2;
  config.speculative_model = kTinyK2Dflash;
  config.speculative = tree(8);
  config.device = test_device();
  config.max_num_seqs = 2;
  config.max_model_len = 512;
  config.tensor_parallel_size = 2;
  const std::unique_ptr<Engine> engine = Engine::load(config);
  EXPECT_NE(engine->describe().find("tensor parallel 2"), std::string::npos);
  auto other = make_tiny_engine({.speculative = plain(), .tensor_parallel_size = 2});
  const Request request = greedy(golden_prompt("chat_tool"), 24);
  EXPECT_EQ(run(*engine, request).tokens, run(*other, request).tokens);
}

}  // namespace
}  // namespace coppice
