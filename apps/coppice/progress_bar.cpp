#include "progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace coppice {
namespace {

constexpr int kWidth = 32;
constexpr std::chrono::milliseconds kRedraw{80};

}  // namespace

ProgressBar::ProgressBar(std::string label, bool quiet)
    : label_(std::move(label)),
      quiet_(quiet),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()) {}

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  if (quiet_ || ended_ || total <= 0) return;
  const auto now = Clock::now();
  ended_ = done >= total;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const int tenth = static_cast<int>(share * 10);
  if (!ended_ && (is_terminal_ ? now - last_drawn_ < kRedraw : tenth == last_tenth_)) return;
  last_drawn_ = now;
  last_tenth_ = tenth;

  const double seconds = std::max(std::chrono::duration<double>(now - start_).count(), 1e-6);
  const double rate = static_cast<double>(done) / seconds;
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  const auto filled = static_cast<std::size_t>(share * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "%s%s [%s] %3.0f %%  %.2f of %.2f GB, %.2f GB/s, %.1f s left%s",
               is_terminal_ ? "\r" : "", label_.c_str(), bar.c_str(), share * 100,
               static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9, rate / 1e9, left,
               is_terminal_ && !ended_ ? "" : "\n");
}

}  // namespace coppice
