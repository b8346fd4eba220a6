// Counters and histograms of requests, and the text of GET /metrics: vLLM's names, then our own.
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/engine_loop.h"

namespace coppice {

// Counts per bucket; bounds ascend.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}

  void observe(double value, std::int64_t times = 1);
  // Prometheus lines under `name`; labels without braces.
  void write(const std::string& name, const std::string& labels, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::int64_t> counts_;
  double sum_ = 0;
  std::int64_t total_ = 0;
};

class ServerMetrics {
 public:
  ServerMetrics();

  // One step of one choice: seconds since its last one (below 0: it is the first), tokens in it.
  void observe_step(double interval_s, std::int64_t num_tokens);
  // The end of one choice, for a reason as name_of(EndReason) gives it.
  void observe_end(const RequestStats& stats, std::int64_t max_tokens, const std::string& reason);
  void observe_abort();

  std::string write(const EngineStatus& status, const std::string& model_name) const;

  struct Totals {
    std::int64_t prompt_tokens = 0, generation_tokens = 0, cached_tokens = 0;
  };
  Totals totals() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Histogram> histograms_;  // by name without prefix
  std::map<std::string, std::int64_t> success_;  // by finish reason
  Totals totals_;
};

}  // namespace coppice
