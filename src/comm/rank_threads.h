// The threads of a tensor-parallel group in one process, and what makes them run in step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "comm/thread_group.h"

namespace coppice {

inline constexpr std::chrono::milliseconds kRankDeadline{30'000};

// Not thread-safe: one thread, rank 0's, makes it and calls run.
class RankThreads {
 public:
  explicit RankThreads(std::int64_t size, std::chrono::milliseconds deadline = kRankDeadline);
  // Waits for every thread but one that is stuck, which is left behind.
  ~RankThreads();

  std::int64_t size() const;
  Communicator& communicator(std::int64_t rank);

  // body(rank) on every rank's own thread, rank 0 on the caller's; returns when all are done. A
  // rank that throws ends the group: this call and all later ones throw an Error of one line that
  // names it. So does, under kDeadline, a rank that is not done that long after rank 0. Its thread
  // still uses `body`'s references then: the process is expected to end.
  enum class Patience { kDeadline, kEndless };
  void run(const std::function<void(std::int64_t rank)>& body,
           Patience patience = Patience::kDeadline);
  // Ends the group in this error, and throws it.
  [[noreturn]] void fail(const Error& error);
  bool has_failed() const;
  // Throws if the group has failed: for ranks in long work without collectives.
  void check() const;
  // Whether the rank never came back from a run.
  bool is_stuck(std::int64_t rank) const;

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state, std::int64_t rank);

  std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;  // of ranks 1, 2, ...
};

}  // namespace coppice
