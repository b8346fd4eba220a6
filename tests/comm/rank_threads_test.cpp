// Ranks as threads: what collectives give, and how a group ends when one rank fails.
#include "comm/rank_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>

#include "tests/support/eventually.h"

namespace coppice {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <typename T>
std::span<std::byte> room_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

// The error of run(body), and how long it took to come.
struct Failure {
  std::string what;
  milliseconds after;
};
Failure failure_of(RankThreads& threads, const std::function<void(std::int64_t)>& body) {
  const Clock::time_point start = Clock::now();
  std::string what;
  try {
    threads.run(body);
  } catch (const Error& error) {
    what = error.what();
  }
  return {what, std::chrono::duration_cast<milliseconds>(Clock::now() - start)};
}

class RankThreadsTest : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(RankThreadsTest, CollectivesGiveEveryRankWhatOthersSent) {
  const std::int64_t size = GetParam();
  const auto count = static_cast<std::size_t>(size);
  RankThreads threads(size);
  std::atomic<int> done = 0;
  threads.run([&](std::int64_t rank) {
    Communicator& communicator = threads.communicator(rank);
    EXPECT_EQ(communicator.rank(), rank);
    EXPECT_EQ(communicator.size(), size);
    for (std::int64_t turn = 0; turn < 200; ++turn) {
      // Part p of rank r is (r, p).
      std::vector<std::int64_t> send(count), recv(count, -1);
      for (std::size_t p = 0; p < count; ++p)
        send[p] = turn * 10000 + rank * 100 + static_cast<std::int64_t>(p);
      communicator.exchange(bytes_of(send), room_of(recv));
      for (std::size_t r = 0; r < count; ++r)
        ASSERT_EQ(recv[r], turn * 10000 + static_cast<std::int64_t>(r) * 100 + rank);
      const std::vector<std::int64_t> mine = {turn, rank};
      std::vector<std::int64_t> all(2 * count);
      communicator.all_gather(bytes_of(mine), room_of(all));
      for (std::size_t r = 0; r < count; ++r) {
        ASSERT_EQ(all[2 * r], turn);
        ASSERT_EQ(all[2 * r + 1], static_cast<std::int64_t>(r));
      }
      std::vector<std::int64_t> word = {rank == turn % size ? 7 * turn : -1};
      communicator.broadcast(room_of(word), turn % size);
      ASSERT_EQ(word[0], 7 * turn);
      communicator.barrier();
    }
    ++done;
  });
  EXPECT_EQ(done, size);
}

TEST_P(RankThreadsTest, SumsAreInRankOrderAndTheSameBitsEverywhere) {
  const std::int64_t size = GetParam();
  RankThreads threads(size);
  for (const std::size_t n : {1u, 5u, 64u, 1003u}) {
    // Values whose sum depends on the order.
    const auto value = [](std::int64_t rank, std::size_t i) {
      return std::ldexp(std::sin(static_cast<float>(rank * 131 + static_cast<std::int64_t>(i))),
                        static_cast<int>((rank * 7 + static_cast<std::int64_t>(i)) % 24));
    };
    std::vector<float> expected(n);
    for (std::size_t i = 0; i < n; ++i) {
      expected[i] = value(0, i);
      for (std::int64_t rank = 1; rank < size; ++rank) expected[i] += value(rank, i);
    }
    std::vector<std::vector<float>> sums(static_cast<std::size_t>(size));
    threads.run([&](std::int64_t rank) {
      std::vector<float>& x = sums[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < n; ++i) x.push_back(value(rank, i));
      std::vector<float> workspace;
      all_reduce_sum(threads.communicator(rank), x, workspace);
    });
    for (const std::vector<float>& sum : sums) EXPECT_EQ(sum, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RankThreadsTest, ::testing::Values(1, 2, 3, 4, 8));

TEST(RankFailureTest, ARankThatThrowsEndsTheGroupAtOnceByItsName) {
  RankThreads threads(4, 2 * testing::kPatience);
  const Failure failure = failure_of(threads, [&](std::int64_t rank) {
    if (rank == 2) throw Error(ErrorKind::kBadFile, "file x: damaged");
    threads.communicator(rank).barrier();
  });
  EXPECT_EQ(failure.what, "rank 2: file x: damaged");
  EXPECT_LT(failure.after, testing::kPatience) << "not when the deadline is over";
  // And for good.
  EXPECT_EQ(failure_of(threads, [](std::int64_t) {}).what, failure.what);
}

TEST(RankFailureTest, OneThatThrowsOutsideCollectivesIsNamedToo) {
  RankThreads threads(2);
  const auto body = [](std::int64_t rank) {
    if (rank == 1) throw std::runtime_error("no memory");
  };
  EXPECT_EQ(failure_of(threads, body).what, "rank 1: no memory");
}

// Ranks held up by the test until it lets them go: the threads of one left behind end then.
struct Gate {
  std::atomic<bool> open = false;
  void wait() const {
    while (!open) std::this_thread::sleep_for(milliseconds(2));
  }
};

TEST(RankFailureTest, ARankThatDoesNotComeIsNamedWhenTheDeadlineIsOver) {
  Gate gate, first_came;
  {
    RankThreads threads(3, milliseconds(1000));
    const Failure failure = failure_of(threads, [&](std::int64_t rank) {
      if (rank == 1) gate.wait();
      // Behind rank 0: whoever waits names the first that is missing.
      if (rank == 2) first_came.wait();
      first_came.open = true;
      threads.communicator(rank).barrier();
    });
    EXPECT_EQ(failure.what, "rank 1 did not answer within 1000 ms");
    EXPECT_TRUE(threads.is_stuck(1));
    EXPECT_TRUE(testing::eventually([&] { return !threads.is_stuck(2); }));
    gate.open = true;
    while (threads.is_stuck(1)) std::this_thread::sleep_for(milliseconds(2));
  }
}

TEST(RankFailureTest, ARankThatDoesNotFinishIsNamedWhenTheDeadlineIsOver) {
  Gate gate;
  {
    RankThreads threads(2, milliseconds(200));
    const Failure failure = failure_of(threads, [&](std::int64_t rank) {
      if (rank == 1) gate.wait();
    });
    EXPECT_EQ(failure.what, "rank 1 did not finish within 200 ms");
    gate.open = true;
    while (threads.is_stuck(1)) std::this_thread::sleep_for(milliseconds(2));
  }
}

}  // namespace
}  // namespace coppice
