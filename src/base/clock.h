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

// For tests: stands still.
class StillClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return 0; }
};

}  // namespace coppice
