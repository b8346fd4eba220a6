// What requests and tokens leave on the heap: nothing. Every allocation by `new` is counted, and
// the heap as malloc has it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <new>

#include "tests/server/support/api_client.h"
#include "tests/server/support/tiny_server.h"
#include "tests/support/sanitized.h"

namespace {

std::atomic<std::int64_t> live_bytes{0};

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  live_bytes += static_cast<std::int64_t>(malloc_usable_size(memory));
  return memory;
}

void uncounted(void* memory) {
  live_bytes -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(std::malloc(size));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(unit, (size + unit - 1) / unit * unit));
}
void operator delete(void* memory) noexcept {
  uncounted(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  uncounted(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  uncounted(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  uncounted(memory);
}

namespace coppice {
namespace {

using testing::ask;
using testing::eventually;

class LeaksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kSanitized) GTEST_SKIP() << "the sanitizers own the heap";
    if (!testing::has_tiny_model()) GTEST_SKIP() << "models/tiny-k2 is absent";
    server_ = testing::start_tiny(testing::tiny_options());
    num_files_ = num_open_files();
    // Boost.Asio makes 193 locks, each when the first connection happens to fall on it.
    for (int i = 0; i < 2000; ++i) ask(server_->port(), "GET", "/version");
  }

  static std::int64_t new_bytes() { return live_bytes.load(); }
  static std::int64_t heap_bytes() { return static_cast<std::int64_t>(mallinfo2().uordblks); }

  // Bytes, as `count` has them, that requests leave behind, each with so many planted leaks of one
  // byte: the least of a few runs, for buffers that grow once are no leak.
  std::int64_t bytes_left(const std::string& path, const std::string& body, int num_requests,
                          int num_leaks = 0, std::int64_t (*count)() = new_bytes) {
    std::int64_t before = 0, least = INT64_MAX;
    for (int run = 0; run < 4; ++run) {
      for (int i = 0; i < num_requests; ++i) {
        EXPECT_EQ(ask(server_->port(), "POST", path, body).status, 200);
        for (int leak = 0; leak < num_leaks; ++leak) leaks_.push_back(std::make_unique<char>());
      }
      const std::int64_t after = bytes_at_rest(count);
      if (run > 0) least = std::min(least, after - before);
      before = after;
    }
    return least;
  }

 private:
  static std::ptrdiff_t num_open_files() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  }

  // What lives when nothing goes on any more: requests end, and connections close, a moment after
  // their answer.
  std::int64_t bytes_at_rest(std::int64_t (*count)()) const {
    std::int64_t bytes = -1;
    EXPECT_TRUE(eventually([&] {
      const EngineStatus status = server_->status();
      const bool rests = status.in_flight == 0 && status.metrics.num_running == 0 &&
                         num_open_files() <= num_files_;
      return std::exchange(bytes, count()) == bytes && rests;
    }));
    return bytes;
  }

  std::unique_ptr<Server> server_;
  std::ptrdiff_t num_files_ = 0;
  std::deque<std::unique_ptr<char>> leaks_;
};

TEST_F(LeaksTest, RequestsLeaveNothingBehind) {
  constexpr int kRequests = 20;
  const std::string body = R"({"prompt":"def f","max_tokens":1})";
  EXPECT_LE(bytes_left("/v1/completions", body, kRequests), 0);
  EXPECT_LE(
      bytes_left("/v1/chat/completions",
                 R"({"messages":[{"role":"user","content":"Hello"}],"max_tokens":1})", kRequests),
      0);
  EXPECT_GE(bytes_left("/v1/completions", body, kRequests, 1), kRequests) << "a planted leak";
}

// Boost.Asio and C libraries allocate past `new`; what malloc keeps moves by a few bytes.
TEST_F(LeaksTest, RequestsLeaveNothingOnTheHeap) {
  constexpr int kRequests = 200;
  constexpr std::int64_t kLimit = 16;  // a request
  const std::string body = R"({"prompt":"def f","max_tokens":1})";
  EXPECT_LT(bytes_left("/v1/completions", body, kRequests, 0, heap_bytes), kLimit * kRequests);
  EXPECT_GT(bytes_left("/v1/completions", body, kRequests, 4, heap_bytes), 80 * kRequests)
      << "planted leaks";
}

TEST_F(LeaksTest, TokensLeaveNothingBehind) {
  constexpr int kTokens = 48;
  const std::string body = R"({"prompt":"def f","temperature":0,"ignore_eos":true,"max_tokens":)" +
                           std::to_string(kTokens);
  EXPECT_LE(bytes_left("/v1/completions", body + "}", 1), 0);
  EXPECT_LE(bytes_left("/v1/completions", body + ",\"stream\":true,\"logprobs\":2}", 1), 0);
  EXPECT_LE(bytes_left("/v1/completions", body + ",\"ddtree_budget\":0}", 1), 0);
  EXPECT_GE(bytes_left("/v1/completions", body + "}", 1, kTokens), kTokens) << "planted leaks";
}

}  // namespace
}  // namespace coppice
