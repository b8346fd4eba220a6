#include "comm/rank_threads.h"

#include <algorithm>

namespace coppice {

// Shared with the threads, so that one left behind finds it.
struct RankThreads::State {
  State(std::int64_t size, std::chrono::milliseconds deadline)
      : group(size, deadline), busy(static_cast<std::size_t>(size), false) {
    for (std::int64_t rank = 0; rank < size; ++rank)
      communicators.push_back(group.make_communicator(rank));
  }

  // Runs the job on this rank; what it throws ends the group.
  void run_job(const std::function<void(std::int64_t)>& run, std::int64_t rank) {
    const std::string name = "rank " + std::to_string(rank) + ": ";
    try {
      run(rank);
    } catch (const Error& error) {
      group.fail(Error(error.kind(), name + error.what()));
    } catch (const std::exception& error) {
      group.fail(Error(ErrorKind::kUnavailable, name + error.what()));
    }
  }

  ThreadGroup group;
  std::vector<std::unique_ptr<Communicator>> communicators;  // [rank]
  std::mutex mutex;                                          // guards what follows
  std::condition_variable changed;
  std::function<void(std::int64_t)> job;
  std::uint64_t job_number = 0;
  std::vector<bool> busy;  // [rank]: runs the job, or is about to
  bool stop = false;
};

RankThreads::RankThreads(std::int64_t size, std::chrono::milliseconds deadline)
    : state_(std::make_shared<State>(size, deadline)) {
  for (std::int64_t rank = 1; rank < size; ++rank)
    threads_.emplace_back([state = state_, rank] { work(state, rank); });
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  for (std::size_t i = 0; i < threads_.size(); ++i)
    is_stuck(static_cast<std::int64_t>(i) + 1) ? threads_[i].detach() : threads_[i].join();
}

std::int64_t RankThreads::size() const {
  return state_->group.size();
}

Communicator& RankThreads::communicator(std::int64_t rank) {
  return *state_->communicators[static_cast<std::size_t>(rank)];
}

void RankThreads::work(const std::shared_ptr<State>& state, std::int64_t rank) {
  std::uint64_t done = 0;
  while (true) {
    std::function<void(std::int64_t)> job;
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->stop || state->job_number != done; });
      if (state->job_number == done) return;
      done = state->job_number;
      job = state->job;
    }
    state->run_job(job, rank);
    const std::lock_guard lock(state->mutex);
    state->busy[static_cast<std::size_t>(rank)] = false;
    state->changed.notify_all();
  }
}

void RankThreads::run(const std::function<void(std::int64_t rank)>& body, Patience patience) {
  check();
  {
    const std::lock_guard lock(state_->mutex);
    state_->job = body;
    ++state_->job_number;
    state_->busy.assign(state_->busy.size(), true);
    state_->busy[0] = false;
  }
  state_->changed.notify_all();
  state_->run_job(body, 0);
  const auto late = [&] { return std::find(state_->busy.begin(), state_->busy.end(), true); };
  {
    std::unique_lock lock(state_->mutex);
    const auto all_done = [&] { return late() == state_->busy.end(); };
    // A group that has failed waits only for those that notice.
    constexpr std::chrono::milliseconds kNotice{1000};
    const std::chrono::milliseconds deadline = state_->group.deadline();
    const std::chrono::milliseconds left =
        state_->group.failure() ? std::min(deadline, kNotice) : deadline;
    if (patience == Patience::kEndless)
      state_->changed.wait(lock, all_done);
    else if (!state_->changed.wait_for(lock, left, all_done))
      state_->group.fail(
          Error(ErrorKind::kUnavailable, "rank " + std::to_string(late() - state_->busy.begin()) +
                                             " did not finish within " +
                                             std::to_string(deadline.count()) + " ms"));
  }
  check();
}

void RankThreads::fail(const Error& error) {
  state_->group.fail(error);
  throw error;
}

bool RankThreads::has_failed() const {
  return state_->group.failure().has_value();
}

void RankThreads::check() const {
  if (const std::optional<Error> failure = state_->group.failure()) throw *failure;
}

bool RankThreads::is_stuck(std::int64_t rank) const {
  const std::lock_guard lock(state_->mutex);
  return state_->busy[static_cast<std::size_t>(rank)];
}

}  // namespace coppice
