// What the ranks of a tensor-parallel group say to each other, on the host.
//
// Every rank calls the same collectives in the same order with equal sizes, each from one thread.
// A call returns when this rank has what it needs. A rank that failed, or that does not come within
// the deadline, ends the group: this call and all later ones throw Error(kUnavailable) in one line
// that names the rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual std::int64_t rank() const = 0;
  virtual std::int64_t size() const = 0;

  // Both are size() equal parts: part r of `send` goes to rank r, part r of `recv` comes from it.
  virtual void exchange(std::span<const std::byte> send, std::span<std::byte> recv) = 0;
  // recv: what each rank sent, in rank order.
  virtual void all_gather(std::span<const std::byte> send, std::span<std::byte> recv) = 0;
  // `data` of the root becomes everybody's.
  virtual void broadcast(std::span<std::byte> data, std::int64_t root) = 0;
  virtual void barrier() = 0;

  // Throws if the group has failed: for long waits outside of collectives. From any thread.
  virtual void check() const = 0;
};

// x becomes the sum of x over ranks, added in rank order in fp32: exchange, local sum, all-gather.
// Every element is summed by one rank alone, so all ranks hold the same bits. `workspace` grows.
void all_reduce_sum(Communicator& communicator, std::span<float> x, std::vector<float>& workspace);

}  // namespace coppice
