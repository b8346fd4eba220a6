// A progress bar on stderr: redrawn in place on a terminal, a plain line every tenth otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace coppice {

class ProgressBar {
 public:
  // `quiet` draws nothing.
  ProgressBar(std::string label, bool quiet);

  // done and total in bytes. The first call with done == total ends the bar.
  void update(std::int64_t done, std::int64_t total);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  bool quiet_;
  bool is_terminal_;
  Clock::time_point start_;
  Clock::time_point last_drawn_;
  int last_tenth_ = -1;
  bool ended_ = false;
};

}  // namespace coppice
