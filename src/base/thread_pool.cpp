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
#include "base/thread_name.h"

namespace coppice {
namespace {

constexpr int kSpinsBeforeSleep = 20000;  // of about 40 cycles: some 200 us
constexpr std::size_t kCacheLine = 64;
// More parts balance better and cost about 0.1 us each.
constexpr std::int64_t kPartsPerThread = 4;

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

// A job is cut into parts that threads take one by one, so a thread that the system has put aside
// holds up only the part it is in, and a late one none.
//
// `ticket` is (job number, next part) in one word. A part is taken by advancing it: that succeeds
// only while the job is still the current one, and then the job cannot end, nor its fields change,
// before the part is finished. Between jobs the part field is kClosed.
struct ThreadPool::State {
  static constexpr std::uint64_t kPartBits = 20;
  static constexpr std::uint64_t kClosed = (std::uint64_t{1} << kPartBits) - 1;

  alignas(kCacheLine) std::atomic<std::uint64_t> ticket{kClosed};
  std::atomic<Call> call{nullptr};
  std::atomic<const void*> body{nullptr};
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> parts{0};
  alignas(kCacheLine) std::atomic<std::int64_t> finished{0};
  // Workers that are asleep or about to be. A worker raises it before it looks at `ticket` for the
  // last time, the caller reads it after it has opened the job: one of them sees the other.
  alignas(kCacheLine) std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  bool spin = false;  // spinning hurts when there are fewer CPUs than threads
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> threads;

  std::uint64_t job() const { return ticket.load() >> kPartBits; }

  // Runs parts of the current job until none is left to take.
  void run_parts() {
    std::uint64_t seen = ticket.load(std::memory_order_acquire);
    while (true) {
      const auto part = static_cast<std::int64_t>(seen & kClosed);
      const std::int64_t total = parts.load(std::memory_order_relaxed);
      if (part >= total) return;
      const Call run = call.load(std::memory_order_relaxed);
      const void* const argument = body.load(std::memory_order_relaxed);
      const std::int64_t items = count.load(std::memory_order_relaxed);
      if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
      run(argument, items * part / total, items * (part + 1) / total);
      finished.fetch_add(1, std::memory_order_release);
      seen = ticket.load(std::memory_order_acquire);
    }
  }

  void open_job(std::uint64_t number) {
    ticket.store(number << kPartBits);
    if (sleepers.load() == 0) return;
    { std::lock_guard lock(mutex); }
    wake.notify_all();
  }

  // Returns once the job number differs from `seen`.
  void wait_for_job(std::uint64_t seen) {
    for (int spins = 0; spin && spins < kSpinsBeforeSleep; ++spins) {
      if (job() != seen) return;
      cpu_relax();
    }
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    wake.wait(lock, [&] { return job() != seen; });
    sleepers.fetch_sub(1);
  }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads > 0 ? num_threads : available_cpus()),
      state_(std::make_unique<State>()) {
  state_->spin = num_threads_ <= available_cpus();
  for (int i = 1; i < num_threads_; ++i) state_->threads.emplace_back([this] { worker(); });
}

ThreadPool::~ThreadPool() {
  state_->stop = true;
  state_->parts = 0;
  state_->open_job(state_->job() + 1);
  for (std::thread& thread : state_->threads) thread.join();
}

void ThreadPool::worker() {
  set_thread_name("compute");
  State& state = *state_;
  for (std::uint64_t seen = 0; !state.stop;) {
    state.wait_for_job(seen);
    seen = state.job();
    state.run_parts();
  }
}

void ThreadPool::run(std::int64_t count, std::int64_t min_chunk, Call call, const void* body) {
  if (count <= 0) return;
  const std::int64_t most = num_threads_ == 1 ? 1 : num_threads_ * kPartsPerThread;
  const std::int64_t parts =
      std::clamp<std::int64_t>(count / std::max<std::int64_t>(min_chunk, 1), 1, most);
  if (parts == 1) {
    call(body, 0, count);
    return;
  }
  State& state = *state_;
  COPPICE_CHECK_EQ(state.ticket.load() & State::kClosed, State::kClosed);  // one caller at a time
  state.call.store(call, std::memory_order_relaxed);
  state.body.store(body, std::memory_order_relaxed);
  state.count.store(count, std::memory_order_relaxed);
  state.parts.store(parts, std::memory_order_relaxed);
  state.finished.store(0, std::memory_order_relaxed);
  const std::uint64_t number = state.job() + 1;
  state.open_job(number);
  state.run_parts();
  for (int spins = 0; state.finished.load(std::memory_order_acquire) != parts; ++spins) {
    if (state.spin && spins < kSpinsBeforeSleep)
      cpu_relax();
    else
      std::this_thread::yield();
  }
  state.ticket.store(number << State::kPartBits | State::kClosed);
}

}  // namespace coppice
