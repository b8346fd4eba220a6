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

constexpr int kSpinsBeforeSleep = 20000;  // about 50 us

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
  std::atomic<std::uint64_t> generation{0};
  std::atomic<int> pending{0};
  std::atomic<bool> stop{false};
  // Written by the caller before `generation` is advanced, read by workers after.
  const Body* body = nullptr;
  std::int64_t count = 0;
  std::int64_t parts = 0;
  bool spin = false;  // spinning hurts when there are fewer CPUs than threads
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> threads;

  void run_part(std::int64_t part) const {
    const std::int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    if (begin < end) (*body)(begin, end);
  }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads > 0 ? num_threads : available_cpus()),
      state_(std::make_unique<State>()) {
  state_->spin = num_threads_ <= available_cpus();
  for (int i = 1; i < num_threads_; ++i) state_->threads.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->generation.fetch_add(1);
  }
  state_->wake.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void ThreadPool::worker(int index) {
  State& state = *state_;
  std::uint64_t seen = 0;
  while (true) {
    for (int spins = 0; state.spin && spins < kSpinsBeforeSleep; ++spins) {
      if (state.generation.load(std::memory_order_acquire) != seen) break;
      cpu_relax();
    }
    if (state.generation.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(state.mutex);
      state.wake.wait(lock, [&] { return state.generation.load() != seen; });
    }
    ++seen;
    if (state.stop) return;
    if (index < state.parts) state.run_part(index);
    state.pending.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t min_chunk, const Body& body) {
  if (count <= 0) return;
  const std::int64_t parts =
      std::clamp<std::int64_t>(count / std::max<std::int64_t>(min_chunk, 1), 1, num_threads_);
  if (parts == 1) {
    body(0, count);
    return;
  }
  State& state = *state_;
  COPPICE_CHECK_EQ(state.pending.load(), 0);
  state.body = &body;
  state.count = count;
  state.parts = parts;
  state.pending.store(num_threads_ - 1, std::memory_order_relaxed);
  {
    std::lock_guard lock(state.mutex);
    state.generation.fetch_add(1, std::memory_order_release);
  }
  state.wake.notify_all();
  state.run_part(0);
  for (int spins = 0; state.pending.load(std::memory_order_acquire) != 0; ++spins) {
    if (state.spin && spins < kSpinsBeforeSleep)
      cpu_relax();
    else
      std::this_thread::yield();
  }
}

}  // namespace coppice
