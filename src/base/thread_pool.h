// A pinned thread pool for decode steps of about 100 us: workers spin briefly between jobs, then
// sleep.
//
// parallel_for splits [0, count) into contiguous ranges, one per thread. A result must not depend
// on the split: every item is computed alone, so the number of threads never shows in the output.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace coppice {

// CPUs this process may use at once: the smaller of its affinity mask and its cgroup quota, at
// least 1.
int available_cpus();

class ThreadPool {
 public:
  using Body = std::function<void(std::int64_t begin, std::int64_t end)>;

  // num_threads counts the caller; 0 means available_cpus().
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Runs body over [0, count) and returns when all of it is done. One caller at a time; not
  // reentrant. Ranges smaller than min_chunk items are not split further. body must not throw.
  void parallel_for(std::int64_t count, std::int64_t min_chunk, const Body& body);

 private:
  struct State;
  void worker(int index);

  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace coppice
