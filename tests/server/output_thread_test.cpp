// Outputs leave on a thread of their own: in order, joined where it is late, none lost at the end.
#include "server/output_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace coppice {
namespace {

struct Recorder final : OutputReceiver {
  void observe(std::size_t, std::int64_t, std::int64_t num_tokens) override {
    observed += num_tokens;
    ++steps;
  }
  void receive(std::size_t choice, const EmittedOutput& output) override {
    if (hold.valid()) hold.wait();
    ids[choice].insert(ids[choice].end(), output.token_ids.begin(), output.token_ids.end());
    logprobs += std::ssize(output.view().logprobs);
    ends += output.end_reason != EndReason::kNone ? 1 : 0;
    ++pieces;
  }
  void receive_failure(const ApiError& error) override {
    failure = error.status();
    ids_at_failure = std::ssize(ids[0]) + std::ssize(ids[1]);
  }

  std::shared_future<void> hold;
  std::vector<std::int32_t> ids[2];
  std::int64_t observed = 0, steps = 0, logprobs = 0, ends = 0, pieces = 0;
  std::int64_t ids_at_failure = -1;
  int failure = 0;
};

EmittedOutput step(std::int32_t first, std::int32_t count, bool last) {
  std::vector<std::int32_t> ids;
  std::vector<TokenLogprob> logprobs;
  for (std::int32_t i = 0; i < count; ++i) {
    ids.push_back(first + i);
    logprobs.push_back({.logprob = -1.0f, .top = {}});
  }
  const RequestStats stats{.num_output_tokens = first + count};
  return {{.id = 1,
           .token_ids = ids,
           .logprobs = logprobs,
           .end_reason = last ? EndReason::kLength : EndReason::kNone,
           .stop_token_id = {},
           .stats = &stats},
          first};
}

void expect_ascending(const std::vector<std::int32_t>& ids, std::int32_t count) {
  ASSERT_EQ(std::ssize(ids), count);
  for (std::int32_t i = 0; i < count; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
}

TEST(OutputThreadTest, StepsThatWaitAreJoinedInOrder) {
  OutputThread outputs;
  const auto recorder = std::make_shared<Recorder>();
  std::promise<void> go;
  recorder->hold = go.get_future().share();
  for (std::int32_t i = 0; i < 50; ++i)
    for (const std::size_t choice : {0, 1}) outputs.post(recorder, choice, step(2 * i, 2, i == 49));
  outputs.post_failure(recorder, ApiError(500, "broken"));
  go.set_value();
  outputs.stop();
  expect_ascending(recorder->ids[0], 100);
  expect_ascending(recorder->ids[1], 100);
  EXPECT_EQ(recorder->observed, 200);
  EXPECT_EQ(recorder->steps, 100);
  EXPECT_EQ(recorder->logprobs, 200);
  EXPECT_EQ(recorder->ends, 2);
  EXPECT_LE(recorder->pieces, 6) << "what waited was not joined";
  EXPECT_EQ(recorder->failure, 500);
  EXPECT_EQ(recorder->ids_at_failure, 200) << "a failure overtook outputs";
}

TEST(OutputThreadTest, FromManyThreadsNoneIsLost) {
  OutputThread outputs;
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    recorders.push_back(std::make_shared<Recorder>());
    threads.emplace_back([&outputs, recorder = recorders.back()] {
      for (std::int32_t i = 0; i < 5000; ++i) outputs.post(recorder, 0, step(i, 1, false));
    });
  }
  for (std::thread& thread : threads) thread.join();
  outputs.stop();
  for (const auto& recorder : recorders) expect_ascending(recorder->ids[0], 5000);
}

TEST(OutputThreadTest, AfterTheStopTheCallerReceives) {
  OutputThread outputs;
  outputs.stop();
  const auto recorder = std::make_shared<Recorder>();
  outputs.post(recorder, 0, step(0, 3, true));
  expect_ascending(recorder->ids[0], 3);
  outputs.post_failure(recorder, ApiError(503, "over"));
  EXPECT_EQ(recorder->failure, 503);
}

}  // namespace
}  // namespace coppice
