// Reads the text of GET /metrics (Prometheus exposition format).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice {

class MetricsSnapshot {
 public:
  MetricsSnapshot() = default;
  // Lines that are no samples are skipped.
  explicit MetricsSnapshot(std::string_view text);

  // Sum over all label sets; 0 when absent.
  double sum(std::string_view name) const;
  bool has(std::string_view name) const;
  // Value by the label's value, in order of appearance.
  std::vector<std::pair<std::string, double>> by_label(std::string_view name,
                                                       std::string_view label) const;
  // Estimate of a histogram's quantile (0 .. 1) as Prometheus makes it, of what was observed since
  // `before`; NaN when nothing was.
  double quantile(std::string_view histogram, double q, const MetricsSnapshot& before) const;
  std::vector<std::string> names() const;

 private:
  struct Sample {
    std::map<std::string, std::string, std::less<>> labels;
    double value;
  };
  std::map<std::string, std::vector<Sample>, std::less<>> samples_;
};

}  // namespace coppice
