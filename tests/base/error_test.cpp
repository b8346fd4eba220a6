#include "base/error.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

namespace coppice {
namespace {

TEST(ErrorTest, CopiesKeepKindAndMessage) {
  const Error error(ErrorKind::kBadFile, "model/config.json: not JSON");
  Error copy(ErrorKind::kNotFound, "");
  copy = error;
  EXPECT_EQ(copy.kind(), ErrorKind::kBadFile);
  EXPECT_STREQ(copy.what(), "model/config.json: not JSON");
}

// The engine refuses a request, the output thread answers it: the thread that throws ends its copy
// last, with nothing but the copies' own count between the other's read and the freed message.
TEST(ErrorTest, CopiesEndOnDifferentThreads) {
  for (int round = 0; round < 20; ++round) {
    std::optional<Error> thrown(std::in_place, ErrorKind::kInvalidArgument, "field 'n': 0");
    std::atomic<bool> read = false;
    std::thread reader([&, copy = std::optional<Error>(*thrown)]() mutable {
      EXPECT_STREQ(copy->what(), "field 'n': 0");
      copy.reset();
      read.store(true, std::memory_order_relaxed);
    });
    while (!read.load(std::memory_order_relaxed)) std::this_thread::yield();
    thrown.reset();
    reader.join();
  }
}

}  // namespace
}  // namespace coppice
