// The exactness test at the sizes of Kimi K2.6: four layers of one GPU, of one of eight
// tensor-parallel ranks, or of several ranks that run together, contexts to 128k and the lengths
// where chunks of keys begin, batches to 64, an oracle drafter. Needs a GPU, or one for each rank:
// COPPICE_TEST_DEVICE=cuda.
//
// Fewer experts than the model has (a row still chooses eight), and on one GPU a smaller
// vocabulary. The keys of long prompts are those of a network whose prompt attention gives nothing:
// cheap to compute, the same for all ways.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "tests/engine/support/exactness.h"
#include "tests/engine/support/oracle_drafter.h"

namespace coppice {
namespace {

using namespace testing;

constexpr std::int64_t kOutput = 80;  // from 40 before to 40 past a boundary
constexpr std::int64_t kMaxContext = 131072;
constexpr std::int64_t kMaxLen = kMaxContext + 256;
constexpr std::int64_t kRealAttention = 2048;  // prompts to here are computed as they are
constexpr std::int64_t kMaxBatch = 64;
constexpr std::int64_t kMaxBudget = 64;
constexpr std::int64_t kKinds = 3;  // of requests: greedy, sampled, filtered and penalised

struct Shape {
  std::string name;
  ModelConfig config;
};

struct LongCase {
  std::int64_t num_ranks = 1, context = 0;
  bool together = false;  // all ranks; else one alone, which sums nothing
};

Shape shape_of(const LongCase& of) {
  const std::int64_t widths = of.together ? 1 : of.num_ranks;
  Shape shape{of.together         ? std::to_string(of.num_ranks) + " GPUs"
              : of.num_ranks == 1 ? "one GPU"
                                  : "one rank of 8",
              kimi_k2_config(4, widths == 1 ? 24 : 96, widths)};
  shape.config.vocab_size = std::min<std::int64_t>(shape.config.vocab_size, 20480);
  return shape;
}

// Ops in captured rounds or one by one; long prompts without attention.
class LongPromptBackend : public ForwardingBackend {
 public:
  LongPromptBackend(std::unique_ptr<Backend> inner, const bool* eager)
      : ForwardingBackend(std::move(inner)), eager_(eager) {}

  void run_graph(const GraphKey& key, const std::function<void()>& body) override {
    if (*eager_)
      body();
    else
      ForwardingBackend::run_graph(key, body);
  }
  void linear(const LinearArgs& args) override {
    repeat("linear", args.out, [&] { ForwardingBackend::linear(args); });
  }
  void head_linear(const HeadLinearArgs& args) override {
    repeat("head_linear", args.out, [&] { ForwardingBackend::head_linear(args); });
  }
  void moe_route(const MoeRouteArgs& args) override {
    repeat("moe_route", args.topk_weights, [&] { ForwardingBackend::moe_route(args); });
  }
  void moe_experts(const MoeExpertsArgs& args) override {
    repeat("moe_experts", args.out, [&] { ForwardingBackend::moe_experts(args); });
  }
  void moe_block(const MoeBlockArgs& args) override {
    repeat("moe_block", args.out, [&] { ForwardingBackend::moe_block(args); });
    if (repeats > 0) Backend::moe_block(args);  // its steps, which equal it
  }
  void mla_queries(const MlaQueriesArgs& args) override {
    repeat("mla_queries", args.q_lat, [&] { ForwardingBackend::mla_queries(args); });
    if (repeats > 0) Backend::mla_queries(args);
  }
  void silu_mul(const SiluMulArgs& args) override {
    repeat("silu_mul", args.out, [&] { ForwardingBackend::silu_mul(args); });
  }
  void mla_attention(const MlaAttentionArgs& args) override {
    repeat("mla_attention", args.out, [&] { attend(args); });
  }

  // While set, every op above is run so many times more on the same inputs and must give the same
  // bytes.
  int repeats = 0;
  struct Repeated {
    std::int64_t runs = 0, differing_runs = 0, differing_bytes = 0;
  };
  std::map<std::string, Repeated> repeated;  // by op and rows

 private:
  void repeat(const std::string& name, const Tensor& out, const std::function<void()>& op) {
    op();
    if (repeats == 0) return;
    const std::vector<std::byte> first = read_bytes(*this, out);
    Repeated& count = repeated[name + " of " + out.describe()];
    for (int i = 0; i < repeats; ++i) {
      op();
      const std::vector<std::byte> again = read_bytes(*this, out);
      std::int64_t bytes = 0;
      for (std::size_t b = 0; b < first.size(); ++b) bytes += first[b] != again[b] ? 1 : 0;
      ++count.runs;
      count.differing_runs += bytes > 0 ? 1 : 0;
      count.differing_bytes += bytes;
    }
  }
  void attend(const MlaAttentionArgs& args) {
    const AttentionMetadata& metadata = *args.metadata;
    if (metadata.provenance == Provenance::kDecided || metadata.max_kv_len <= kRealAttention)
      return ForwardingBackend::mla_attention(args);
    const std::int64_t rows = args.out.shape(0), columns = args.out.shape(1) * args.out.shape(2);
    if (zeros_.data() == nullptr) zeros_ = allocate(kMaxZeros);
    gather_rows({.src = zeros_.tensor(args.out.dtype(), {1, columns}),
                 .rows = zeros_.tensor(DType::kI32, {rows}),
                 .out = args.out.reshape({rows, columns})});
  }

  static constexpr std::size_t kMaxZeros = std::size_t{1} << 20;
  const bool* eager_;
  Buffer zeros_;
};

class LongTest : public ::testing::TestWithParam<LongCase> {
 protected:
  void SetUp() override {
    if (test_device() == "cpu") GTEST_SKIP() << "needs a GPU: COPPICE_TEST_DEVICE=cuda";
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    const LongCase& wanted = GetParam();
    const bool fits = loaded_ != nullptr && loaded_->num_ranks == wanted.num_ranks &&
                      loaded_->together == wanted.together;
    if (!fits) {
      loaded_.reset();
      try {
        check_rank_devices(test_device(), wanted.together ? wanted.num_ranks : 1);
      } catch (const Error& error) {
        GTEST_SKIP() << error.what();
      }
      loaded_ = load(wanted);
    }
    engine_ = loaded_->engine.get();
    vocab_size_ = loaded_->vocab_size;
  }
  static void TearDownTestSuite() { loaded_.reset(); }

  // Weights take longer to draw than a context to test: contexts of a shape share an engine.
  struct Loaded {
    std::int64_t num_ranks = 0, vocab_size = 0;
    bool together = false, eager = false;
    std::vector<std::shared_ptr<Oracle>> oracles;  // alike, one for each rank's memory
    std::vector<LongPromptBackend*> backends;
    std::unique_ptr<Engine> engine;
  };
  static EngineParts load_rank(Loaded& loaded, const Shape& shape, const ParallelConfig& parallel,
                               Communicator* communicator) {
    const auto rank = static_cast<std::size_t>(parallel.rank);
    EngineParts parts;
    parts.clock = &kStillClock;
    auto wrapped = std::make_unique<LongPromptBackend>(
        make_backend({.device = test_device(), .communicator = communicator}), &loaded.eager);
    loaded.backends[rank] = wrapped.get();
    parts.backend = std::move(wrapped);
    const ModelOptions options{.max_rows = 2048, .max_positions = kMaxLen, .parallel = parallel};
    parts.model = make_random_model(*parts.backend, shape.config, 5, options);
    parts.make_drafter = [oracle = loaded.oracles[rank]](Backend& backend) {
      return std::make_unique<OracleDrafter>(backend, oracle, kMaxBatch);
    };
    return parts;
  }
  static EngineParts load_ranks(Loaded& loaded, const Shape& shape, std::int64_t size) {
    const auto threads = std::make_shared<RankThreads>(size);
    std::vector<EngineParts> all(static_cast<std::size_t>(size));
    threads->run(
        [&](std::int64_t rank) {
          all[static_cast<std::size_t>(rank)] =
              load_rank(loaded, shape, {rank, size}, &threads->communicator(rank));
        },
        RankThreads::Patience::kEndless);
    EngineParts parts = std::move(all.front());
    parts.peers.assign(std::make_move_iterator(all.begin() + 1),
                       std::make_move_iterator(all.end()));
    parts.threads = threads;
    return parts;
  }
  static std::unique_ptr<Loaded> load(const LongCase& wanted) {
    auto loaded = std::make_unique<Loaded>();
    const Shape shape = shape_of(wanted);
    const std::int64_t size = wanted.together ? wanted.num_ranks : 1;
    loaded->num_ranks = wanted.num_ranks;
    loaded->together = wanted.together;
    loaded->vocab_size = shape.config.vocab_size;
    loaded->backends.resize(static_cast<std::size_t>(size));
    for (std::int64_t rank = 0; rank < size; ++rank)
      loaded->oracles.push_back(std::make_shared<Oracle>(kKinds, kMaxLen, shape.config.vocab_size));
    EngineConfig config;
    config.max_num_seqs = kMaxBatch;
    config.max_num_batched_tokens = 2048;
    config.max_verify_rows = 2048;
    config.max_model_len = kMaxLen;
    config.num_kv_blocks = 4096;
    config.prefix_cache_exact = true;
    config.speculative = tree(kMaxBudget);
    config.tensor_parallel_size = size;
    loaded->engine =
        std::make_unique<Engine>(config, size == 1 ? load_rank(*loaded, shape, {}, nullptr)
                                                   : load_ranks(*loaded, shape, size));
    return loaded;
  }

  // All prompts begin alike, so that later ones find their long part in the cache.
  Request request(std::int64_t context, std::int64_t kind, std::int64_t budget) const {
    std::vector<std::int32_t> prompt;
    const std::int64_t length = context - 40 + 13 * kind;
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t own = i + 70 > length ? 31 * (kind + 1) : 0;
      prompt.push_back(static_cast<std::int32_t>((i * i + i / 7 + own) % vocab_size_));
    }
    Request request = greedy(prompt, kOutput);
    request.sampling.seed = kind;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = kind == 0 ? 0 : 0.8;
    if (kind == 2) {
      request.sampling.top_p = 0.95;
      request.sampling.repetition_penalty = 1.1;
    }
    request.ddtree_budget = budget;
    return request;
  }

  std::vector<Trail> run(const std::vector<Request>& requests, std::int64_t num_watched,
                         std::int64_t preempt_at = -1) {
    TrailRecorder recorder(*engine_, std::ssize(requests[0].prompt_token_ids) - 16);
    std::vector<Finished> results(requests.size());
    std::vector<RequestId> ids;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      ids.push_back(add(*engine_, requests[i], results[i]));
      if (static_cast<std::int64_t>(i) < num_watched) recorder.watch(ids.back());
    }
    for (std::int64_t step = 0; engine_->step(); ++step)
      if (step == preempt_at) engine_->preempt(ids[0]);
    engine_->set_commit_observer({});
    std::vector<Trail> trails;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      trails.push_back(recorder.trail(ids[i]));
      trails.back().tokens = results[i].tokens;
      trails.back().stats = results[i].stats;
    }
    return trails;
  }

  // Rows of plain decoding alone and what it said, by kind; the oracle learns them.
  void learn(std::int64_t context) {
    for (std::int64_t kind = 0; kind < kKinds; ++kind) {
      const Request alone = request(context, kind, 0);
      expected_[kind] = run({alone}, 1)[0];
      std::vector<std::int32_t>& truth = truth_[kind] = alone.prompt_token_ids;
      const std::vector<std::int32_t>& tokens = expected_[kind].tokens;
      ASSERT_EQ(std::ssize(tokens), kOutput);
      truth.insert(truth.end(), tokens.begin(), tokens.end());
      for (const auto& oracle : loaded_->oracles) oracle->learn(kind, truth);
    }
    EXPECT_NE(expected_[0].tokens, expected_[1].tokens);
  }

  void expect_same(const Trail& trail, std::int64_t kind, bool watched, const std::string& what) {
    const Trail& expected = expected_[kind];
    EXPECT_EQ(trail.tokens, expected.tokens) << what;
    ++num_compared_;
    if (!watched) return;
    const Difference difference = compare_common(expected, trail);
    EXPECT_FALSE(difference) << what << ": " << difference.what;
    num_rows_ += std::ssize(trail.rows);
  }

  // Only rows both have: a shorter prompt of the batch may end before the first one's rows begin.
  static Difference compare_common(const Trail& a, const Trail& b) {
    if (!b.breach.empty()) return {b.breach, -1};
    std::size_t both = 0;
    for (const auto& [position, row] : b.rows) {
      const auto other = a.rows.find(position);
      if (other == a.rows.end()) continue;
      ++both;
      if (row.kv != other->second.kv)
        return {"keys differ at position " + std::to_string(position), position};
      if (row.logits != 0 && other->second.logits != 0 && row.logits != other->second.logits)
        return {"logits differ at position " + std::to_string(position), position};
    }
    if (both < static_cast<std::size_t>(kOutput) - 1) return {"too few rows compared", -1};
    return {};
  }

  void expect_planted(const Trail& trail, std::int64_t kind, std::int64_t prompt_len,
                      std::int64_t budget) {
    const Oracle::Expected planted =
        loaded_->oracles[0]->expect(kind, truth_[kind], prompt_len, budget);
    EXPECT_EQ(trail.stats.num_rounds, planted.rounds);
    EXPECT_EQ(trail.stats.num_accepted_tokens, planted.accepted);
    EXPECT_GT(planted.accepted, planted.rounds / 2);
    rounds_ += planted.rounds;
    accepted_ += planted.accepted;
  }

  // In a batch every request keeps its own budget; the trees are those it has alone.
  void run_batch(std::int64_t context, std::int64_t size, bool preempted) {
    constexpr std::array<std::int64_t, 7> kBudgets = {16, 0, 64, 8, 1, 33, 5};
    std::vector<Request> requests;
    for (std::int64_t i = 0; i < size; ++i)
      requests.push_back(
          request(context, i % kKinds, kBudgets[static_cast<std::size_t>(i) % kBudgets.size()]));
    const std::int64_t watched = std::min<std::int64_t>(size, 7);
    const std::vector<Trail> trails = run(requests, watched, preempted ? 6 : -1);
    for (std::int64_t i = 0; i < size; ++i)
      expect_same(trails[static_cast<std::size_t>(i)], i % kKinds, i < watched,
                  "request " + std::to_string(i) + " of " + std::to_string(size));
  }

  void run_ways(std::int64_t context) {
    SCOPED_TRACE("context " + std::to_string(context));
    learn(context);
    for (const bool eager : {false, true}) {
      loaded_->eager = eager;
      SCOPED_TRACE(eager ? "op by op" : "captured");
      for (std::int64_t kind = 0; kind < kKinds; ++kind)
        for (const std::int64_t budget : {std::int64_t{0}, std::int64_t{16}, kMaxBudget}) {
          const Request alone = request(context, kind, budget);
          const Trail trail = run({alone}, 1)[0];
          expect_same(trail, kind, true, "alone, budget " + std::to_string(budget));
          if (budget > 0) expect_planted(trail, kind, std::ssize(alone.prompt_token_ids), budget);
        }
      run_batch(context, 7, !eager);
      run_batch(context, kMaxBatch, false);
    }
    loaded_->eager = false;
  }

  // Only what a round decided.
  static void hash_layers(const CommitTrace& trace,
                          std::map<std::int64_t, std::vector<std::uint64_t>>& hashes) {
    for (std::size_t i = 0; i < trace.slots.size(); ++i) {
      if (trace.rows[i] < 0) continue;
      std::vector<std::uint64_t>& row = hashes[trace.position + static_cast<std::int64_t>(i)];
      const auto hash = [&](const Tensor& tensor) {
        const std::vector<std::byte> bytes = read_bytes(*trace.backend, tensor);
        row.push_back(hash_bytes(bytes.data(), bytes.size()));
      };
      hash(trace.logits.rows(trace.rows[i], 1));
      for (const Tensor& plane : trace.cache->planes())
        hash(plane.reshape({plane.shape(0) * plane.shape(1), plane.shape(2)})
                 .rows(trace.slots[i], 1));
    }
  }
  static std::string differing(const std::vector<std::uint64_t>& a,
                               const std::vector<std::uint64_t>& b) {
    std::string text = a.size() == b.size() ? "" : "number of rows";
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (a[i] != b[i])
        text += i == 0 ? std::string(" logits") : " keys of layer " + std::to_string(i - 1);
    return text;
  }

  static std::unique_ptr<Loaded> loaded_;
  std::int64_t vocab_size_ = 0, num_compared_ = 0, num_rows_ = 0, rounds_ = 0, accepted_ = 0;
  Engine* engine_ = nullptr;
  std::map<std::int64_t, Trail> expected_;
  std::map<std::int64_t, std::vector<std::int32_t>> truth_;
};

std::unique_ptr<LongTest::Loaded> LongTest::loaded_;

TEST_P(LongTest, EveryWayLeavesTheSameBits) {
  const std::int64_t context = GetParam().context;
  const std::int64_t start = SteadyClock().now_ns();
  run_ways(context);
  std::cout << shape_of(GetParam()).name << ", context " << context << ": " << num_compared_
            << " requests, " << num_rows_ << " rows of keys and logits compared, tau "
            << static_cast<double>(accepted_ + rounds_) / static_cast<double>(rounds_) << ", "
            << static_cast<double>(SteadyClock().now_ns() - start) / 1e9 << " s" << std::endl;
}

// The same request again and again: what differs from run to run is a race. Keys by layer tell
// where it lies.
TEST_P(LongTest, RunsAreRepeatable) {
  const std::int64_t context = GetParam().context;
  constexpr int kRuns = 24;
  learn(context);
  using Hashes = std::map<std::int64_t, std::vector<std::uint64_t>>;  // logits, keys by layer
  for (const bool eager : {true, false})
    for (const std::int64_t kind : {0, 1}) {
      loaded_->eager = eager;
      Hashes first;
      for (int i = 0; i < kRuns; ++i) {
        Hashes hashes;
        engine_->set_commit_observer([&](const CommitTrace& trace) { hash_layers(trace, hashes); });
        Finished result;
        add(*engine_, request(context, kind, 16), result);
        while (engine_->step()) {
        }
        engine_->set_commit_observer({});
        if (i == 0) first = hashes;
        std::string what;
        for (const auto& [position, hash] : first)
          if (hash != hashes[position])
            what += " " + std::to_string(position) + ":" + differing(hash, hashes[position]) + ";";
        EXPECT_EQ(what, "") << (eager ? "op by op" : "captured") << ", kind " << kind << ", run "
                            << i;
      }
    }
  loaded_->eager = false;
}

// Each op by itself, on the inputs of real rounds: names the op that is not repeatable.
TEST_P(LongTest, OpsAreRepeatable) {
  const std::int64_t context = GetParam().context;
  if (context > kRealAttention || GetParam().together) GTEST_SKIP() << "the same ops as elsewhere";
  learn(context);
  loaded_->eager = true;
  loaded_->backends[0]->repeats = 3;
  for (const std::int64_t budget : {0, 16, 64}) run({request(context, 0, budget)}, 1);
  loaded_->backends[0]->repeats = 0;
  loaded_->eager = false;
  for (const auto& [op, count] : loaded_->backends[0]->repeated)
    EXPECT_EQ(count.differing_runs, 0)
        << op << ": " << count.differing_bytes << " bytes in all, of " << count.runs << " runs";
}

std::vector<LongCase> long_cases() {
  std::vector<LongCase> cases;
  for (const std::int64_t num_ranks : {8, 1})
    for (const std::int64_t context :
         {std::int64_t{1024}, std::int64_t{8192}, std::int64_t{33000}, kMaxContext})
      cases.push_back({num_ranks, context});
  for (const std::int64_t num_ranks : {2, 4, 8}) cases.push_back({num_ranks, 1024, true});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, LongTest, ::testing::ValuesIn(long_cases()),
                         [](const auto& param) {
                           return (param.param.together ? "All" : "Of") +
                                  std::to_string(param.param.num_ranks) + "RanksAt" +
                                  std::to_string(param.param.context);
                         });

}  // namespace
}  // namespace coppice
