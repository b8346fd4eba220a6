#include "comm/thread_group.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace coppice {

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(ThreadGroup& group, std::int64_t rank) : group_(group), rank_(rank) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t size() const override { return group_.size(); }

  void exchange(std::span<const std::byte> send, std::span<std::byte> recv) override {
    COPPICE_CHECK_EQ(send.size(), recv.size());
    const std::size_t part = send.size() / static_cast<std::size_t>(size());
    std::byte* to = recv.data();
    for (const std::vector<std::byte>& from : group_.meet(rank_, send)) {
      COPPICE_CHECK_EQ(from.size(), send.size());
      if (part > 0) std::memcpy(to, from.data() + static_cast<std::size_t>(rank_) * part, part);
      to += part;
    }
  }

  void all_gather(std::span<const std::byte> send, std::span<std::byte> recv) override {
    COPPICE_CHECK_EQ(send.size() * static_cast<std::size_t>(size()), recv.size());
    std::byte* to = recv.data();
    for (const std::vector<std::byte>& from : group_.meet(rank_, send)) {
      COPPICE_CHECK_EQ(from.size(), send.size());
      to = std::copy(from.begin(), from.end(), to);
    }
  }

  void broadcast(std::span<std::byte> data, std::int64_t root) override {
    const std::span<const std::byte> mine = rank_ == root ? data : std::span<std::byte>();
    const std::vector<std::byte>& from = group_.meet(rank_, mine)[static_cast<std::size_t>(root)];
    COPPICE_CHECK_EQ(from.size(), data.size());
    if (rank_ != root) std::copy(from.begin(), from.end(), data.begin());
  }

  void barrier() override { group_.meet(rank_, {}); }
  void check() const override {
    if (const std::optional<Error> failure = group_.failure()) throw *failure;
  }

 private:
  ThreadGroup& group_;
  std::int64_t rank_;
};

ThreadGroup::ThreadGroup(std::int64_t size, std::chrono::milliseconds deadline)
    : deadline_(deadline), here_(static_cast<std::size_t>(size), false) {
  for (Parts& set : parts_) set.resize(here_.size());
}

std::unique_ptr<Communicator> ThreadGroup::make_communicator(std::int64_t rank) {
  COPPICE_CHECK(rank >= 0 && rank < size(), rank, " of ", size());
  return std::make_unique<ThreadCommunicator>(*this, rank);
}

void ThreadGroup::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }
  came_.notify_all();
}

std::optional<Error> ThreadGroup::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

const ThreadGroup::Parts& ThreadGroup::meet(std::int64_t rank, std::span<const std::byte> part) {
  // Only this rank's own call ends the current collective for it, so the set is known beforehand.
  Parts* set = nullptr;
  {
    const std::lock_guard lock(mutex_);
    set = &parts_[generation_ % parts_.size()];
  }
  (*set)[static_cast<std::size_t>(rank)].assign(part.begin(), part.end());
  wait_for_all(rank);
  return *set;
}

void ThreadGroup::wait_for_all(std::int64_t rank) {
  std::unique_lock lock(mutex_);
  if (failure_) throw *failure_;
  const std::uint64_t generation = generation_;
  here_[static_cast<std::size_t>(rank)] = true;
  if (++num_here_ == size()) {
    std::fill(here_.begin(), here_.end(), false);
    num_here_ = 0;
    ++generation_;
    came_.notify_all();
    return;
  }
  const bool in_time = came_.wait_for(
      lock, deadline_, [&] { return generation_ != generation || failure_.has_value(); });
  if (generation_ != generation) return;
  if (!in_time) {
    const auto missing = std::find(here_.begin(), here_.end(), false) - here_.begin();
    failure_ = Error(ErrorKind::kUnavailable, "rank " + std::to_string(missing) +
                                                  " did not answer within " +
                                                  std::to_string(deadline_.count()) + " ms");
    came_.notify_all();
  }
  throw *failure_;
}

}  // namespace coppice
