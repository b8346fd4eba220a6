// A thread pool for decode steps of about 100 us: workers spin briefly between jobs, then sleep.
// Starting a job allocates nothing and, while the workers spin, makes no system call.
//
// parallel_for splits [0, count) into contiguous ranges, a few per thread, taken as threads become
// free. A result must not depend on the split: every item is computed alone, so the number of
// threads never shows in the output.
#pragma once

#include <cstdint>
#include <memory>

namespace coppice {

// CPUs this process may use at once: the smaller of its affinity mask and its cgroup quota, at
// least 1.
int available_cpus();

class ThreadPool {
 public:
  // num_threads counts the caller; 0 means available_cpus().
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Runs body over [0, count) and returns when all of it is done. One caller at a time; not
  // reentrant. Ranges smaller than min_chunk items are not split further. body(begin, end) must not
  // throw.
  template <typename Body>
  void parallel_for(std::int64_t count, std::int64_t min_chunk, const Body& body) {
    const Call call = [](const void* b, std::int64_t begin, std::int64_t end) {
      (*static_cast<const Body*>(b))(begin, end);
    };
    run(count, min_chunk, call, &body);
  }

 private:
  using Call = void (*)(const void* body, std::int64_t begin, std::int64_t end);
  struct State;
  void run(std::int64_t count, std::int64_t min_chunk, Call call, const void* body);
  void worker();

  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace coppice
