// The engine's thread: queue limits, loading, cancelling, draining, health.
#include "server/engine_loop.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/engine/support/tiny_engine.h"
#include "tests/server/support/tiny_server.h"
#include "tests/support/lost_backend.h"

namespace coppice {
namespace {

using testing::eventually;

EngineConfig tiny_engine() {
  EngineConfig config = testing::tiny_options().engine;
  config.max_num_seqs = 2;
  config.enable_prefix_caching = false;  // so that no block stays used
  return config;
}

EngineLoop::Loader tiny_loader() {
  return [](const LoadProgress& progress) { return Engine::load(tiny_engine(), progress); };
}

// What a submission saw. The engine waits in the output number hold_at until it is let go.
struct Seen {
  std::atomic<int> outputs{0}, ends{0}, failures{0};
  std::atomic<int> status{0};
  int hold_at = 0;  // 0: never
  std::atomic<bool> let_go{false};
};

// Keeps the engine between two steps from now on, until it is let go, at the latest with this.
class Hold {
 public:
  explicit Hold(EngineLoop& loop) {
    EXPECT_TRUE(loop.run([this](Engine&) {
      holds_ = true;
      go_.get_future().wait();
    }));
    EXPECT_TRUE(eventually([&] { return holds_.load(); }));
  }
  ~Hold() { let_go(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  void let_go() {
    if (!std::exchange(gone_, true)) go_.set_value();
  }

 private:
  std::promise<void> go_;
  std::atomic<bool> holds_{false};
  bool gone_ = false;
};

Submission request(const std::shared_ptr<Seen>& seen, std::int64_t max_tokens) {
  Submission submission;
  submission.request.prompt_token_ids = {300, 301, 302};
  submission.request.sampling.temperature = 0;
  submission.request.sampling.max_tokens = max_tokens;
  submission.request.sampling.ignore_eos = true;
  submission.on_output = [seen](const RequestOutput& output) {
    if (output.end_reason != EndReason::kNone) ++seen->ends;
    if (++seen->outputs == seen->hold_at) seen->let_go.wait(false);
  };
  submission.on_failure = [seen](const ApiError& error) {
    ++seen->failures;
    seen->status = error.status();
  };
  return submission;
}

std::vector<Submission> one(const std::shared_ptr<Seen>& seen, std::int64_t max_tokens) {
  std::vector<Submission> list;
  list.push_back(request(seen, max_tokens));
  return list;
}

int status_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ApiError& error) {
    return error.status();
  }
  return 0;
}

class EngineLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_tiny_model()) GTEST_SKIP() << "models/tiny-k2 is absent";
  }
};

TEST(EngineLoopLoadingTest, TellsPhaseAndPercentAndRefuses) {
  std::promise<void> go;
  EngineLoop loop({}, [&](const LoadProgress& progress) -> std::unique_ptr<Engine> {
    progress(30, 100);
    go.get_future().wait();
    throw Error(ErrorKind::kBadFile, "model.safetensors: damaged");
  });
  ASSERT_TRUE(eventually([&] { return loop.status().progress > 0; }));
  const EngineStatus loading = loop.status();
  EXPECT_EQ(loading.state, EngineState::kLoading);
  EXPECT_EQ(loading.phase, "loading weights");
  EXPECT_DOUBLE_EQ(loading.progress, 0.3);
  EXPECT_FALSE(loading.ready());
  const auto seen = std::make_shared<Seen>();
  EXPECT_EQ(status_of([&] { loop.submit(one(seen, 1)); }), 503);
  go.set_value();
  ASSERT_TRUE(eventually([&] { return loop.status().state == EngineState::kFailed; }));
  EXPECT_EQ(loop.status().failure, "model.safetensors: damaged");
  EXPECT_EQ(status_of([&] { loop.submit(one(seen, 1)); }), 503);
}

TEST_F(EngineLoopTest, ALostDeviceFailsEveryRequestWithItsCause) {
  std::atomic<bool> lost = false;
  EngineLoop loop({.max_num_seqs = 4}, [&](const LoadProgress&) {
    return testing::make_tiny_engine({.wrap_backend = [&](std::unique_ptr<Backend> inner) {
      return std::make_unique<testing::LostBackend>(std::move(inner), lost);
    }});
  });
  ASSERT_TRUE(eventually([&] { return loop.status().ready(); }));
  const auto running = std::make_shared<Seen>(), waiting = std::make_shared<Seen>();
  for (int i = 0; i < 4; ++i) loop.submit(one(running, 1000));
  loop.submit(one(waiting, 1000));
  ASSERT_TRUE(eventually([&] { return running->outputs > 8; }));
  lost = true;
  ASSERT_TRUE(eventually([&] { return loop.status().state == EngineState::kFailed; }));
  ASSERT_TRUE(eventually([&] { return loop.status().in_flight == 0; }));
  EXPECT_EQ(running->failures, 4);
  EXPECT_EQ(waiting->failures, 1);
  EXPECT_EQ(running->status, 500);
  EXPECT_EQ(loop.status().failure, "device lost");
  EXPECT_EQ(status_of([&] { loop.submit(one(running, 1)); }), 503);
}

TEST_F(EngineLoopTest, RefusesMoreThanTheQueueHoldsAndLosesNone) {
  EngineLoop loop({.max_queued_requests = 3, .max_num_seqs = 2}, tiny_loader());
  ASSERT_TRUE(eventually([&] { return loop.status().ready(); }));
  const auto seen = std::make_shared<Seen>();
  Hold hold(loop);  // so that none ends meanwhile
  int accepted = 0, refused = 0;
  for (int i = 0; i < 50; ++i) {
    const int status = status_of([&] { loop.submit(one(seen, 40)); });
    accepted += status == 0 ? 1 : 0;
    refused += status == 429 ? 1 : 0;
  }
  EXPECT_EQ(accepted, 5);
  EXPECT_EQ(refused, 45);
  hold.let_go();
  ASSERT_TRUE(eventually([&] { return seen->ends == accepted; }));
  ASSERT_TRUE(eventually([&] { return loop.status().in_flight == 0; }));
  EXPECT_EQ(seen->failures, 0);
}

TEST_F(EngineLoopTest, CancelFreesTheCache) {
  EngineLoop loop({.max_num_seqs = 2}, tiny_loader());
  ASSERT_TRUE(eventually([&] { return loop.status().ready(); }));
  for (int i = 0; i < 30; ++i) {
    const auto seen = std::make_shared<Seen>();
    // A third before they begin, the others at their first to fifth output.
    std::optional<Hold> hold;
    if (i % 3 == 0)
      hold.emplace(loop);
    else
      seen->hold_at = 1 + i % 5;
    const std::vector<Ticket> tickets = loop.submit(one(seen, 900));
    const bool came = eventually([&] { return seen->outputs >= seen->hold_at; });
    loop.cancel(tickets);
    hold.reset();
    seen->let_go = true;
    seen->let_go.notify_all();
    ASSERT_TRUE(came);
    ASSERT_TRUE(eventually([&] { return loop.status().in_flight == 0; }));
    EXPECT_EQ(seen->ends, 0);
    EXPECT_EQ(seen->outputs, seen->hold_at);
  }
  EXPECT_TRUE(eventually([&] { return loop.status().metrics.num_kv_blocks_used == 0; }));
}

// A client that measures from its first answer to its last one reads the counts then.
TEST_F(EngineLoopTest, RoundsAreCountedBeforeTheLastOutputLeaves) {
  EngineLoop loop({.max_num_seqs = 2}, tiny_loader());
  ASSERT_TRUE(eventually([&] { return loop.status().ready(); }));
  const auto seen = std::make_shared<Seen>();
  std::atomic<std::int64_t> at_end{0};
  std::vector<Submission> submissions = one(seen, 9);
  submissions[0].on_output = [&, count = submissions[0].on_output](const RequestOutput& output) {
    if (output.end_reason != EndReason::kNone) at_end = loop.status().metrics.num_decode_tokens;
    count(output);
  };
  loop.submit(std::move(submissions));
  ASSERT_TRUE(eventually([&] { return loop.status().metrics.num_finished == 1; }));
  EXPECT_GT(at_end, 0);
  EXPECT_EQ(at_end, loop.status().metrics.num_decode_tokens);
}

TEST_F(EngineLoopTest, FaultsOfARequestAreItsOwn) {
  EngineLoop loop({.max_num_seqs = 2}, tiny_loader());
  ASSERT_TRUE(eventually([&] { return loop.status().ready(); }));
  const auto good = std::make_shared<Seen>(), bad = std::make_shared<Seen>();
  for (int i = 0; i < 20; ++i) {
    loop.submit(one(bad, 100000));  // above max_model_len
    loop.submit(one(good, 3));
  }
  EXPECT_TRUE(eventually([&] { return good->ends == 20 && bad->failures == 20; }));
  EXPECT_EQ(bad->status, 400);
  EXPECT_TRUE(eventually([&] { return loop.status().in_flight == 0; }));
}

TEST_F(EngineLoopTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  EngineLoop loop({.max_num_seqs = 2}, tiny_loader());
  ASSERT_TRUE(eventually([&] { return loop.status().ready(); }));
  const auto seen = std::make_shared<Seen>();
  for (int i = 0; i < 6; ++i) loop.submit(one(seen, 50));
  auto drained =
      std::async(std::launch::async, [&] { return loop.drain(std::chrono::seconds(300)); });
  ASSERT_TRUE(eventually([&] { return loop.status().state == EngineState::kDraining; }));
  EXPECT_FALSE(loop.status().ready());
  EXPECT_EQ(status_of([&] { loop.submit(one(seen, 1)); }), 503);
  EXPECT_TRUE(drained.get());
  EXPECT_EQ(seen->ends, 6);
}

TEST_F(EngineLoopTest, DrainFailsWhatIsLeftInTime) {
  EngineLoop loop({.max_num_seqs = 2}, tiny_loader());
  ASSERT_TRUE(eventually([&] { return loop.status().ready(); }));
  const auto seen = std::make_shared<Seen>();
  constexpr int kRequests = 200;  // more than a millisecond's work, however late it begins
  for (int i = 0; i < kRequests; ++i) loop.submit(one(seen, 1000));
  EXPECT_FALSE(loop.drain(std::chrono::milliseconds(1)));
  EXPECT_TRUE(eventually([&] { return seen->ends + seen->failures == kRequests; }));
  EXPECT_GT(seen->failures, 0);
  EXPECT_EQ(seen->status, 503);
}

TEST_F(EngineLoopTest, StuckEngineIsNotReadyWhileWorkWaits) {
  EngineLoop loop({.max_num_seqs = 2, .stuck_after = std::chrono::milliseconds(50)}, tiny_loader());
  ASSERT_TRUE(eventually([&] { return loop.status().ready(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(120));
  EXPECT_TRUE(loop.status().ready()) << "idle is not stuck";
  Hold hold(loop);
  const auto seen = std::make_shared<Seen>();
  loop.submit(one(seen, 3));
  EXPECT_TRUE(eventually([&] { return loop.status().stuck; }));
  EXPECT_FALSE(loop.status().ready());
  EXPECT_GT(loop.status().step_age_s, 0.05);
  hold.let_go();
  EXPECT_TRUE(eventually([&] { return seen->ends == 1; }));
  EXPECT_TRUE(eventually([&] { return loop.status().ready(); }));
}

}  // namespace
}  // namespace coppice
