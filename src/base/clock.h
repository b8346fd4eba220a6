// Time as a dependency: engine code takes a Clock and never asks the operating system itself.
#pragma once

#include <chrono>
#include <cstdint>

namespace coppice {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic nanoseconds since an arbitrary start.
  virtual std::int64_t now_ns() const = 0;
};

class SteadyClock final : public Clock {
 public:
  std::int64_t now_ns() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// For tests: moves only when told to.
class FakeClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return now_ns_; }
  void advance_ns(std::int64_t delta) { now_ns_ += delta; }

 private:
  std::int64_t now_ns_ = 0;
};

}  // namespace coppice
