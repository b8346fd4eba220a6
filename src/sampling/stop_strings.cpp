#include "sampling/stop_strings.h"

#include <algorithm>
#include <utility>

namespace coppice {

StopStrings::Result StopStrings::push(std::string_view fragment) {
  held_ += fragment;
  Result result;
  std::size_t first = std::string::npos, first_end = std::string::npos;
  for (const std::string& stop : stop_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const std::size_t end = at + stop.size();
    if (end > first_end || (end == first_end && at >= first)) continue;
    first = at;
    first_end = end;
    result.matched = stop;
  }
  if (first != std::string::npos) {
    result.stopped = true;
    result.text = held_.substr(0, first);
    held_.clear();
    return result;
  }
  // The longest suffix that begins a stop string stays.
  std::size_t keep = 0;
  for (const std::string& stop : stop_)
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
  result.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return result;
}

std::string StopStrings::flush() {
  return std::exchange(held_, {});
}

}  // namespace coppice
