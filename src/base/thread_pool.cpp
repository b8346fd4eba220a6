#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"

namespace coppice {
namespace {

constexpr int kSpinsBeforeSleep = 20000;  // of about 40 cycles: some 200 us
constexpr std::size_t kCacheLine = 64;

void cpu_relax() {
  __builtin_ia32_pause();
}

// The cgroup v2 or v1 CPU quota in whole CPUs, or a large number without one.
int cgroup_cpu_quota() {
  constexpr int kNoQuota = 1 << 20;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2) {
    std::string quota;
    double period = 0;
    if (v2 >> quota >> period && quota != "max" && period > 0)
      return std::max(1, static_cast<int>(std::stod(quota) / period));
    return kNoQuota;
  }
  double quota = -1, period = 0;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  if (quota > 0 && period > 0) return std::max(1, static_cast<int>(quota / period));
  return kNoQuota;
}

}  // namespace

int available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affinity = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, std::min(affinity, cgroup_cpu_quota()));
}

struct ThreadPool::State {
  // Advanced by the caller to start a job, after the job's fields below are written.
  alignas(kCacheLine) std::atomic<std::uint64_t> generation{0};
  Call call = nullptr;
  const void* body = nullptr;
  std::int64_t count = 0;
  std::int64_t parts = 0;
  // Workers that have not finished the job.
  alignas(kCacheLine) std::atomic<int> pending{0};
  // Workers that are asleep or about to be. A worker raises it before it looks at `generation` for
  // the last time, the caller reads it after it has advanced `generation`: one of them sees the
  // other.
  alignas(kCacheLine) std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  bool spin = false;  // spinning hurts when there are fewer CPUs than threads
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> threads;

  void run_part(std::int64_t part) const {
    const std::int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    if (begin < end) call(body, begin, end);
  }

  void start_job() {
    generation.fetch_add(1);
    if (sleepers.load() == 0) return;
    { std::lock_guard lock(mutex); }
    wake.notify_all();
  }

  // Returns once `generation` differs from seen.
  void wait_for_job(std::uint64_t seen) {
    for (int spins = 0; spin && spins < kSpinsBeforeSleep; ++spins) {
      if (generation.load(std::memory_order_acquire) != seen) return;
      cpu_relax();
    }
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    wake.wait(lock, [&] { return generation.load() != seen; });
    sleepers.fetch_sub(1);
  }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads > 0 ? num_threads : available_cpus()),
      state_(std::make_unique<State>()) {
  state_->spin = num_threads_ <= available_cpus();
  for (int i = 1; i < num_threads_; ++i) state_->threads.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
  state_->stop = true;
  state_->start_job();
  for (std::thread& thread : state_->threads) thread.join();
}

void ThreadPool::worker(int index) {
  State& state = *state_;
  for (std::uint64_t seen = 0;; ++seen) {
    state.wait_for_job(seen);
    if (state.stop) return;
    if (index < state.parts) state.run_part(index);
    state.pending.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::run(std::int64_t count, std::int64_t min_chunk, Call call, const void* body) {
  if (count <= 0) return;
  const std::int64_t parts =
      std::clamp<std::int64_t>(count / std::max<std::int64_t>(min_chunk, 1), 1, num_threads_);
  if (parts == 1) {
    call(body, 0, count);
    return;
  }
  State& state = *state_;
  COPPICE_CHECK_EQ(state.pending.load(), 0);
  state.call = call;
  state.body = body;
  state.count = count;
  state.parts = parts;
  state.pending.store(num_threads_ - 1, std::memory_order_relaxed);
  state.start_job();
  state.run_part(0);
  for (int spins = 0; state.pending.load(std::memory_order_acquire) != 0; ++spins) {
    if (state.spin && spins < kSpinsBeforeSleep)
      cpu_relax();
    else
      std::this_thread::yield();
  }
}

}  // namespace coppice
