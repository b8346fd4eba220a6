// A group of ranks that are threads of one process: their communicators, and how they fail as one.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace coppice {

// Thread-safe. Outlives its communicators.
class ThreadGroup {
 public:
  // deadline: how long a collective waits for the last rank.
  ThreadGroup(std::int64_t size, std::chrono::milliseconds deadline);

  std::int64_t size() const { return static_cast<std::int64_t>(here_.size()); }
  std::chrono::milliseconds deadline() const { return deadline_; }
  std::unique_ptr<Communicator> make_communicator(std::int64_t rank);

  // Ends every collective, now and later, in this error. The first one counts.
  void fail(const Error& error);
  std::optional<Error> failure() const;

 private:
  friend class ThreadCommunicator;

  using Parts = std::vector<std::vector<std::byte>>;
  // Shows `part` to all ranks and returns every rank's once all have come. The result stays until
  // the rank calls again: parts alternate between two sets, and nobody writes to one while another
  // rank may still read it, because it met that rank in the call between.
  const Parts& meet(std::int64_t rank, std::span<const std::byte> part);
  void wait_for_all(std::int64_t rank);

  std::chrono::milliseconds deadline_;
  std::array<Parts, 2> parts_;  // [set][rank]
  mutable std::mutex mutex_;    // guards what follows
  std::condition_variable came_;
  std::vector<bool> here_;  // [rank]: waits in the current collective
  std::int64_t num_here_ = 0;
  std::uint64_t generation_ = 0;  // collectives done
  std::optional<Error> failure_;
};

}  // namespace coppice
