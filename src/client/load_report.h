// The figures of a load run, in vLLM's text and JSON.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/load_generator.h"
#include "client/metrics_snapshot.h"

namespace coppice {

struct ReportOptions {
  std::vector<std::string> metrics = {"ttft", "tpot", "itl", "e2el"};  // those with percentiles
  std::vector<double> percentiles = {99};
  std::vector<std::pair<std::string, double>> goodput;  // ttft, tpot, e2el: at most so many ms
  double request_rate = 0;
  std::int64_t max_concurrency = 0;
};

// "ttft:500 tpot:50" in words. Throws Error(kInvalidArgument).
std::vector<std::pair<std::string, double>> parse_goodput(const std::vector<std::string>& words);

// "ttft,tpot". Throws Error(kInvalidArgument) for what is no metric of ours.
std::vector<std::string> parse_metrics(const std::string& text);

// As numpy's: linear between neighbours; 0 without values.
double percentile(std::vector<double> values, double percent);

struct Distribution {
  std::int64_t count = 0;  // of values; without any the rest says nothing
  double mean = 0, median = 0, std = 0;
  std::vector<std::pair<double, double>> percentiles;  // percent, value
};

// What the server says it drafted during the run.
struct DraftStats {
  double drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  std::vector<double> per_position;  // share of drafts accepted at this depth
  double acceptance_rate() const { return draft_tokens > 0 ? accepted_tokens / draft_tokens : 0; }
  // Tokens per round, the bonus token included.
  double acceptance_length() const { return drafts > 0 ? 1 + accepted_tokens / drafts : 0; }
};
// Nothing when no round drafted between the two.
std::optional<DraftStats> draft_stats(const MetricsSnapshot& before, const MetricsSnapshot& after);

// Tokens of prompts that the server's prefix cache had, of those that were looked up; nothing when
// none were.
std::optional<double> prefix_hit_rate(const MetricsSnapshot& before, const MetricsSnapshot& after);

struct LoadReport {
  std::int64_t completed = 0, failed = 0;
  double duration_s = 0;
  std::int64_t total_input = 0, total_output = 0;
  double request_throughput = 0, output_throughput = 0, total_token_throughput = 0;
  double request_goodput = 0;
  double max_output_tokens_per_s = 0;  // in the best second
  std::int64_t max_concurrent_requests = 0;
  Distribution ttft, tpot, itl, e2el;  // ms
  std::optional<DraftStats> drafts;
  std::optional<double> prefix_cache_hit_rate;
};

LoadReport summarize(const std::vector<LoadResult>& results, double duration_s,
                     const ReportOptions& options);
std::string report_text(const LoadReport& report, const ReportOptions& options);
// vLLM's keys, without those that only the caller knows (date, model_id ...).
Json report_json(const LoadReport& report, const ReportOptions& options);
// input_lens, output_lens, ttfts, itls, start_times, generated_texts, errors.
Json detail_json(const std::vector<LoadResult>& results);

}  // namespace coppice
