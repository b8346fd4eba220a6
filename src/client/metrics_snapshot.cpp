#include "client/metrics_snapshot.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace coppice {
namespace {

// name="value",... between braces. Escapes are resolved.
std::map<std::string, std::string, std::less<>> read_labels(std::string_view text) {
  std::map<std::string, std::string, std::less<>> labels;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t equals = text.find("=\"", at);
    if (equals == std::string_view::npos) break;
    const std::string name(text.substr(at, equals - at));
    std::string value;
    for (at = equals + 2; at < text.size() && text[at] != '"'; ++at) {
      if (text[at] == '\\' && at + 1 < text.size()) ++at;
      value += text[at];
    }
    labels.emplace(name, std::move(value));
    at += 2;  // quote and comma
  }
  return labels;
}

}  // namespace

MetricsSnapshot::MetricsSnapshot(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty() || line[0] == '#') continue;
    const std::size_t space = line.rfind(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view series = line.substr(0, space);
    const std::size_t brace = series.find('{');
    Sample sample{{}, std::strtod(std::string(line.substr(space + 1)).c_str(), nullptr)};
    if (brace != std::string_view::npos)
      sample.labels = read_labels(series.substr(brace + 1, series.size() - brace - 2));
    samples_[std::string(series.substr(0, brace))].push_back(std::move(sample));
  }
}

bool MetricsSnapshot::has(std::string_view name) const {
  return samples_.find(name) != samples_.end();
}

double MetricsSnapshot::sum(std::string_view name) const {
  const auto found = samples_.find(name);
  if (found == samples_.end()) return 0;
  double total = 0;
  for (const Sample& sample : found->second) total += sample.value;
  return total;
}

std::vector<std::pair<std::string, double>> MetricsSnapshot::by_label(
    std::string_view name, std::string_view label) const {
  std::vector<std::pair<std::string, double>> values;
  const auto found = samples_.find(name);
  if (found == samples_.end()) return values;
  for (const Sample& sample : found->second)
    if (const auto at = sample.labels.find(label); at != sample.labels.end())
      values.emplace_back(at->second, sample.value);
  return values;
}

double MetricsSnapshot::quantile(std::string_view histogram, double q,
                                 const MetricsSnapshot& before) const {
  std::map<double, double> below;  // count by upper bound
  const std::string name = std::string(histogram) + "_bucket";
  const auto add = [&](const MetricsSnapshot& from, double sign) {
    for (const auto& [bound, count] : from.by_label(name, "le"))
      below[bound == "+Inf" ? std::numeric_limits<double>::infinity()
                            : std::strtod(bound.c_str(), nullptr)] += sign * count;
  };
  add(*this, 1);
  add(before, -1);
  if (below.empty() || below.rbegin()->second <= 0) return std::nan("");
  const double rank = q * below.rbegin()->second;
  double low = 0, low_count = 0;
  for (const auto& [bound, count] : below) {
    if (count >= rank && count > low_count)
      return std::isinf(bound) ? low
                               : low + (bound - low) * (rank - low_count) / (count - low_count);
    low = std::isinf(bound) ? low : bound;
    low_count = count;
  }
  return low;
}

std::vector<std::string> MetricsSnapshot::names() const {
  std::vector<std::string> all;
  for (const auto& [name, samples] : samples_) all.push_back(name);
  return all;
}

}  // namespace coppice
