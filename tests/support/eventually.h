// Waiting for what happens on another thread.
#pragma once

#include <chrono>
#include <thread>

namespace coppice::testing {

// How long a test waits for what must come. A time limit is for hangs only: whatever waits this
// long waits for nothing, sanitizers, one core and a busy machine included.
inline constexpr std::chrono::minutes kPatience{10};

// Waits until a condition holds; false when patience has ended.
template <typename Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace coppice::testing
