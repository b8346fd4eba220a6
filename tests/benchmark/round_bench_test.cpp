// A round on random weights, by part.
#include "benchmark/round_bench.h"

#include <gtest/gtest.h>

#include "backend/factory/make_backend.h"
#include "backend/trace/forwarding_backend.h"
#include "base/error.h"
#include "comm/rank_threads.h"
#include "tests/support/eventually.h"

namespace coppice {
namespace {

const BackendOptions kCpu = {.device = "cpu", .num_threads = 1};

Json run(const RoundBenchOptions& options) {
  auto backend = make_backend(kCpu);
  const auto meter = make_device_meter(*backend, kCpu);
  return run_round_bench(
      std::move(backend), *meter, options,
      {.progress = [](const std::string&) {}, .line = [](const std::string&) {}});
}

TEST(RoundBenchTest, EveryPartIsTimed) {
  const Json report =
      run({.num_layers = 3, .contexts = {70}, .rows = {2, 8}, .batches = {2}, .repeats = 2});
  EXPECT_EQ(report.find("schema")->as_string(), "coppice-bench-round-1");
  const Json& rounds = *report.find("rounds");
  ASSERT_EQ(rounds.size(), 2u);
  for (const Json& round : rounds.as_array()) {
    EXPECT_GT(round.find("total_us")->as_double(), 0);
    for (const char* stage : {"tree_build", "compile", "verify", "commit"})
      EXPECT_GT(round.find("stages")->find(stage)->as_double(), 0) << stage;
    for (const char* part : {"attention", "experts", "dense", "lm_head", "norms", "sampling"})
      EXPECT_GT(round.find("verify")->find(part)->as_double(), 0) << part;
  }
  EXPECT_FALSE(rounds.as_array()[0].find("drafting")->as_bool());
  EXPECT_TRUE(rounds.as_array()[1].find("drafting")->as_bool());
  // Eight rows choose more experts than two, of 32 and at least 4.
  const auto distinct = [&](std::size_t i) {
    return rounds.as_array()[i].find("distinct_experts")->as_double();
  };
  EXPECT_GE(distinct(0), 4);
  EXPECT_GT(distinct(1), distinct(0));
  EXPECT_LE(distinct(1), 32);
  // A round settles its root at least, and no more than the longest path of four nodes.
  EXPECT_EQ(rounds.as_array()[0].find("committed_tokens")->as_double(), 1);
  EXPECT_GE(rounds.as_array()[1].find("committed_tokens")->as_double(), 1);
  EXPECT_LE(rounds.as_array()[1].find("committed_tokens")->as_double(), 4);
  EXPECT_EQ(rounds.as_array()[1].find("places")->as_int(), 1);
  // Eight rows: no expert has more.
  for (const char* loads : {"expert_loads", "expert_loads_alone"}) {
    const Json& bins = *rounds.as_array()[1].find(loads);
    ASSERT_EQ(bins.size(), 1u) << loads;
    EXPECT_GE(bins.as_array()[0].as_double(), 4) << loads;
    EXPECT_LE(bins.as_array()[0].as_double(), 32) << loads;
  }
}

// A router whose choice is known: in the first of two routed layers all rows choose the same four
// experts, in the second each row has four of its own.
class KnownRouter final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void moe_block(const MoeBlockArgs& args) override { Backend::moe_block(args); }  // its steps
  void moe_route(const MoeRouteArgs& args) override {
    ForwardingBackend::moe_route(args);
    const std::int64_t top_k = args.topk_ids.shape(1);
    for (std::int64_t t = 0; t < args.topk_ids.shape(0); ++t)
      for (std::int64_t k = 0; k < top_k; ++k)
        args.topk_ids.row<std::int32_t>(t)[k] =
            static_cast<std::int32_t>(second_ ? t * top_k + k : k);
    second_ = !second_;
  }

 private:
  bool second_ = false;
};

TEST(RoundBenchTest, ExpertsAreCountedLayerByLayer) {
  auto backend = std::make_unique<KnownRouter>(make_backend(kCpu));
  const auto meter = make_device_meter(*backend, kCpu);
  const Json report = run_round_bench(
      std::move(backend), *meter, {.num_layers = 3, .contexts = {70}, .rows = {2, 8}, .repeats = 1},
      {.progress = [](const std::string&) {}, .line = [](const std::string&) {}});
  const auto& rounds = report.find("rounds")->as_array();
  for (std::size_t i = 0; i < 2; ++i) {
    const double own = 4 * rounds[i].find("rows")->as_double();
    const Json& layers = *rounds[i].find("distinct_experts_by_layer");
    ASSERT_EQ(layers.size(), 2u);
    EXPECT_EQ(layers.as_array()[0].as_double(), 4);
    EXPECT_EQ(layers.as_array()[1].as_double(), own);
    EXPECT_EQ(rounds[i].find("distinct_experts")->as_double(), (4 + own) / 2);
  }
}

// Peers' kernels summed over a step stand beside the point of the same network, context and rows.
TEST(RoundBenchTest, AStepHasItsPeers) {
  const Json peers = parse_json(
      R"({"peers": {"step of 3 layers tiny L=70 B=2 M=8": [{"name": "theirs", "us": 12.5}]}})",
      "peers");
  const Json report = run({.num_layers = 3,
                           .contexts = {70},
                           .rows = {2, 8},
                           .batches = {2},
                           .repeats = 1,
                           .peers = peers});
  const auto& rounds = report.find("rounds")->as_array();
  EXPECT_TRUE(rounds[0].find("peer")->is_null());
  EXPECT_TRUE(rounds[0].find("peer_us")->is_null());
  EXPECT_EQ(rounds[1].find("peer")->as_string(), "theirs");
  EXPECT_EQ(rounds[1].find("peer_us")->as_double(), 12.5);
}

TEST(RoundBenchTest, AllRanksTimeWhatPassesBetweenThem) {
  RankThreads threads(2, testing::kPatience);
  std::vector<Json> reports(2);
  threads.run([&](std::int64_t rank) {
    Communicator& communicator = threads.communicator(rank);
    auto backend = make_backend({.device = "cpu", .num_threads = 1, .communicator = &communicator});
    const auto meter = make_device_meter(*backend, kCpu);
    reports[static_cast<std::size_t>(rank)] =
        run_round_bench(std::move(backend), *meter,
                        {.num_layers = 2,
                         .num_ranks = 2,
                         .rank = rank,
                         .meet = [&communicator] { communicator.barrier(); },
                         .contexts = {70},
                         .rows = {4},
                         .repeats = 2},
                        {.progress = [](const std::string&) {}, .line = [](const std::string&) {}});
  });
  for (const Json& report : reports) {
    EXPECT_TRUE(report.find("model")->find("all_ranks")->as_bool());
    const Json& round = report.find("rounds")->as_array()[0];
    EXPECT_GT(round.find("verify")->find("ranks")->as_double(), 0);
    EXPECT_TRUE(round.find("drafting")->as_bool());
  }
}

TEST(RoundBenchTest, RunsAreInterleavedAndTheirSpreadIsKept) {
  const Json report =
      run({.num_layers = 2, .contexts = {64}, .rows = {1, 3}, .repeats = 1, .runs = 2});
  const Json& rounds = *report.find("rounds");
  ASSERT_EQ(rounds.size(), 2u);
  for (const Json& round : rounds.as_array()) {
    EXPECT_EQ(round.find("runs")->as_int(), 2);
    EXPECT_LE(round.find("total_us_min")->as_double(), round.find("total_us")->as_double());
    EXPECT_GE(round.find("total_us_max")->as_double(), round.find("total_us")->as_double());
    EXPECT_EQ(round.find("spread")->find("experts")->size(), 2u);
    EXPECT_EQ(round.find("places")->as_int(), 2);  // every run elsewhere
  }
  EXPECT_EQ(rounds.as_array()[0].find("rows")->as_int(), 1);  // in the order asked for
}

// A backend whose memory is full at times.
class FullBackend final : public ForwardingBackend {
 public:
  FullBackend(std::unique_ptr<Backend> inner, const bool& full)
      : ForwardingBackend(std::move(inner)), full_(full) {}
  Buffer allocate(std::size_t num_bytes) override {
    if (full_) throw Error(ErrorKind::kOutOfMemory, "full");
    return ForwardingBackend::allocate(num_bytes);
  }

 private:
  const bool& full_;
};

TEST(RoundBenchTest, PointsStayWhereTheyAreWhileMemoryIsFull) {
  bool full = false;
  auto backend = std::make_unique<FullBackend>(make_backend(kCpu), full);
  const auto meter = make_device_meter(*backend, kCpu);
  const Json report =
      run_round_bench(std::move(backend), *meter,
                      {.num_layers = 2, .contexts = {64}, .rows = {3}, .repeats = 1, .runs = 3},
                      {.progress = [&](const std::string& now) { full = now == "run 2 of 3"; },
                       .line = [](const std::string&) {}});
  const Json& round = report.find("rounds")->as_array()[0];
  EXPECT_EQ(round.find("runs")->as_int(), 3);
  EXPECT_EQ(round.find("places")->as_int(), 2);
}

TEST(RoundBenchTest, RowsMustSpreadOverTheBatch) {
  EXPECT_THROW(run({.num_layers = 2, .contexts = {64}, .rows = {3}, .batches = {2}}), Error);
}

// What is behind the context has room for a tree and for what the repeats settle.
TEST(RoundBenchTest, MoreRowsThanTheCacheHasRoomForAreRefused) {
  EXPECT_THROW(run({.num_layers = 2, .contexts = {64}, .rows = {65536}}), Error);
  EXPECT_THROW(run({.num_layers = 2, .contexts = {64}, .rows = {1, 1000}, .repeats = 1000}), Error);
}

// A run that ends half way, by a fault or by its user, leaves what it has.
TEST(RoundBenchTest, EveryPointIsReportedAtOnce) {
  std::vector<std::size_t> sizes;
  auto backend = make_backend(kCpu);
  const auto meter = make_device_meter(*backend, kCpu);
  const Json whole = run_round_bench(
      std::move(backend), *meter,
      {.num_layers = 2, .contexts = {64, 65}, .rows = {1}, .repeats = 1},
      {.report = [&](const Json& report) { sizes.push_back(report.find("rounds")->size()); }});
  EXPECT_EQ(sizes, (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(whole.find("rounds")->size(), 2u);
}

}  // namespace
}  // namespace coppice
