// vLLM's periodic log lines, which scripts read, and its log format.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "server/server_metrics.h"

namespace coppice {

class StatsLog {
 public:
  explicit StatsLog(std::int64_t max_num_seqs) : max_num_seqs_(max_num_seqs) {}

  // What happened since the last call; empty when nothing did.
  std::vector<std::string> lines(const EngineStatus& status, const ServerMetrics::Totals& totals);

 private:
  std::int64_t max_num_seqs_;
  SteadyClock clock_;
  std::int64_t last_ns_ = clock_.now_ns();
  EngineMetrics last_;
  ServerMetrics::Totals last_totals_;
};

// "INFO 11-29 15:04:05 [coppice] line"; or one JSON object a line. Installs itself as the log sink.
void use_server_log_format(bool json);

}  // namespace coppice
