#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace coppice {
namespace {

TEST(ThreadPoolTest, CoversEveryItemOnceForAnyThreadCount) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (std::int64_t count : {0, 1, 2, 3, 64, 1001}) {
      std::vector<int> visits(static_cast<std::size_t>(count), 0);
      pool.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      EXPECT_EQ(std::accumulate(visits.begin(), visits.end(), 0), count);
      for (int visit : visits) EXPECT_EQ(visit, 1);
    }
  }
}

TEST(ThreadPoolTest, ManyShortJobsInARow) {
  ThreadPool pool(4);
  std::vector<std::int64_t> sums(4096, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(16, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) sums[static_cast<std::size_t>(i)] += i;
    });
  }
  EXPECT_EQ(sums[15], 15 * 2000);
}

TEST(ThreadPoolTest, JobsOfChangingSizeNeverMix) {
  ThreadPool pool(3);
  std::vector<int> visits(300);
  for (int round = 0; round < 3000; ++round) {
    const std::int64_t count = 1 + round * 37 % 300;
    std::fill(visits.begin(), visits.end(), 0);
    pool.parallel_for(count, 1 + round % 5, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
    });
    for (std::int64_t i = 0; i < 300; ++i)
      ASSERT_EQ(visits[static_cast<std::size_t>(i)], i < count ? 1 : 0) << round << ' ' << i;
  }
}

TEST(ThreadPoolTest, SleepingWorkersWakeForTheNextJob) {
  ThreadPool pool(4);
  std::atomic<std::int64_t> sum = 0;
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  }
  EXPECT_EQ(sum, 2000);
}

TEST(ThreadPoolTest, AvailableCpusIsPositive) {
  EXPECT_GE(available_cpus(), 1);
}

}  // namespace
}  // namespace coppice
