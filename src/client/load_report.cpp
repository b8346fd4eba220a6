#include "client/load_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sstream>

namespace coppice {
namespace {

Distribution distribution(const std::vector<double>& seconds, const std::vector<double>& percents) {
  Distribution result = {.count = std::ssize(seconds)};
  std::vector<double> ms = seconds;
  for (double& value : ms) value *= 1000;
  std::sort(ms.begin(), ms.end());
  const double count = static_cast<double>(std::max<std::size_t>(ms.size(), 1));
  result.mean = std::accumulate(ms.begin(), ms.end(), 0.0) / count;
  double squares = 0;
  for (const double value : ms) squares += (value - result.mean) * (value - result.mean);
  result.std = std::sqrt(squares / count);
  result.median = percentile(ms, 50);
  for (const double percent : percents)
    result.percentiles.emplace_back(percent, percentile(ms, percent));
  return result;
}

// Time per token after the first; nothing for a single token.
std::optional<double> time_per_token(const LoadResult& result) {
  if (result.output_len < 2) return std::nullopt;
  return (result.latency_s - result.ttft_s) / static_cast<double>(result.output_len - 1);
}

bool is_good(const LoadResult& result, const ReportOptions& options) {
  return std::all_of(options.goodput.begin(), options.goodput.end(), [&](const auto& limit) {
    const double value = limit.first == "ttft"   ? result.ttft_s
                         : limit.first == "tpot" ? time_per_token(result).value_or(0)
                                                 : result.latency_s;
    return value * 1000 <= limit.second;
  });
}

// Tokens and requests under way in each second of the run. A chunk's share of its answer's tokens
// is taken as equal.
void find_peaks(const std::vector<LoadResult>& results, LoadReport& report) {
  double end = 0;
  for (const LoadResult& result : results) end = std::max(end, result.start_s + result.latency_s);
  std::vector<double> tokens(static_cast<std::size_t>(end) + 1, 0);
  std::vector<std::int64_t> running(tokens.size(), 0);
  for (const LoadResult& result : results) {
    if (!result.success) continue;
    double time = result.start_s + result.ttft_s;
    const double share =
        static_cast<double>(result.output_len) / static_cast<double>(result.itl_s.size() + 1);
    tokens[static_cast<std::size_t>(time)] += share;
    for (const double interval : result.itl_s) {
      time += interval;
      tokens[std::min(static_cast<std::size_t>(time), tokens.size() - 1)] += share;
    }
    for (auto second = static_cast<std::size_t>(result.start_s);
         second <= static_cast<std::size_t>(result.start_s + result.latency_s); ++second)
      ++running[second];
  }
  report.max_output_tokens_per_s = *std::max_element(tokens.begin(), tokens.end());
  report.max_concurrent_requests = *std::max_element(running.begin(), running.end());
}

struct MetricName {
  const char* key;
  const char* title;
  const char* shown;
  Distribution LoadReport::*values;
};
constexpr std::array kMetricNames{
    MetricName{"ttft", "Time to First Token", "TTFT", &LoadReport::ttft},
    MetricName{"tpot", "Time per Output Token (excl. 1st token)", "TPOT", &LoadReport::tpot},
    MetricName{"itl", "Inter-token Latency", "ITL", &LoadReport::itl},
    MetricName{"e2el", "End-to-end Latency", "E2EL", &LoadReport::e2el},
};

bool is_wanted(const MetricName& metric, const ReportOptions& options) {
  return std::find(options.metrics.begin(), options.metrics.end(), metric.key) !=
         options.metrics.end();
}

// 99 and 99.9, not 99.000000.
std::string percent_name(double percent) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", percent);
  return text;
}

// A title in the middle of 50 fill characters, the odd one behind.
std::string centred(const std::string& title, char fill) {
  constexpr std::size_t kWidth = 50;
  const std::size_t room = kWidth - std::min(kWidth, title.size());
  return std::string(room / 2, fill) + title + std::string(room - room / 2, fill) + "\n";
}

std::string row(const std::string& label, const std::string& text) {
  char line[160];
  std::snprintf(line, sizeof line, "%-40s %-10s\n", label.c_str(), text.c_str());
  return line;
}
std::string row(const std::string& label, const char* format, double value) {
  char number[64];
  std::snprintf(number, sizeof number, format, value);
  return row(label, std::string(number));
}
std::string row(const std::string& label, std::int64_t value) {
  return row(label, "%.0f", static_cast<double>(value));
}

std::string draft_text(const DraftStats& drafts) {
  std::string text = centred("Speculative Decoding", '-');
  text += row("Acceptance rate (%):", "%.2f", drafts.acceptance_rate() * 100);
  text += row("Acceptance length:", "%.2f", drafts.acceptance_length());
  text += row("Drafts:", "%.0f", drafts.drafts);
  text += row("Draft tokens:", "%.0f", drafts.draft_tokens);
  text += row("Accepted tokens:", "%.0f", drafts.accepted_tokens);
  if (drafts.per_position.empty()) return text;
  text += "Per-position acceptance (%):\n";
  for (std::size_t i = 0; i < drafts.per_position.size(); ++i)
    text += row("  Position " + std::to_string(i) + ":", "%.2f", drafts.per_position[i] * 100);
  return text;
}

}  // namespace

std::vector<std::pair<std::string, double>> parse_goodput(const std::vector<std::string>& words) {
  std::vector<std::pair<std::string, double>> limits;
  for (const std::string& word : words) {
    const std::size_t colon = word.find(':');
    const std::string name = word.substr(0, colon);
    char* end = nullptr;
    const double limit =
        colon == std::string::npos ? -1 : std::strtod(word.c_str() + colon + 1, &end);
    if ((name != "ttft" && name != "tpot" && name != "e2el") || limit < 0 || *end != '\0')
      throw Error(ErrorKind::kInvalidArgument,
                  "--goodput " + word + ": must be ttft:MS, tpot:MS or e2el:MS");
    limits.emplace_back(name, limit);
  }
  return limits;
}

std::vector<std::string> parse_metrics(const std::string& text) {
  std::vector<std::string> keys;
  std::istringstream words(text);
  for (std::string key; std::getline(words, key, ',');) {
    if (key.empty()) continue;
    const bool known = std::any_of(kMetricNames.begin(), kMetricNames.end(),
                                   [&](const MetricName& metric) { return metric.key == key; });
    if (!known)
      throw Error(ErrorKind::kInvalidArgument,
                  "--percentile-metrics " + key + ": unknown; there are ttft, tpot, itl, e2el");
    keys.push_back(std::move(key));
  }
  return keys;
}

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = percent / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

std::optional<DraftStats> draft_stats(const MetricsSnapshot& before, const MetricsSnapshot& after) {
  const auto since = [&](const char* name) { return after.sum(name) - before.sum(name); };
  DraftStats stats{.drafts = since("vllm:spec_decode_num_drafts_total"),
                   .draft_tokens = since("vllm:spec_decode_num_draft_tokens_total"),
                   .accepted_tokens = since("vllm:spec_decode_num_accepted_tokens_total")};
  if (stats.draft_tokens <= 0 || stats.drafts <= 0) return std::nullopt;
  constexpr const char* kPerPosition = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  const auto earlier = before.by_label(kPerPosition, "position");
  for (const auto& [position, count] : after.by_label(kPerPosition, "position")) {
    double value = count;
    for (const auto& [name, old] : earlier)
      if (name == position) value -= old;
    stats.per_position.push_back(value / stats.drafts);
  }
  return stats;
}

std::optional<double> prefix_hit_rate(const MetricsSnapshot& before, const MetricsSnapshot& after) {
  const auto since = [&](const char* name) { return after.sum(name) - before.sum(name); };
  const double queries = since("vllm:prefix_cache_queries_total");
  if (queries <= 0) return std::nullopt;
  return since("vllm:prefix_cache_hits_total") / queries;
}

LoadReport summarize(const std::vector<LoadResult>& results, double duration_s,
                     const ReportOptions& options) {
  LoadReport report{.duration_s = duration_s};
  std::vector<double> ttft, tpot, itl, e2el;
  std::int64_t num_good = 0;
  for (const LoadResult& result : results) {
    if (!result.success) {
      ++report.failed;
      continue;
    }
    ++report.completed;
    report.total_input += result.prompt_len;
    report.total_output += result.output_len;
    ttft.push_back(result.ttft_s);
    e2el.push_back(result.latency_s);
    if (const auto time = time_per_token(result)) tpot.push_back(*time);
    itl.insert(itl.end(), result.itl_s.begin(), result.itl_s.end());
    num_good += is_good(result, options) ? 1 : 0;
  }
  const auto rate = [&](std::int64_t count) {
    return duration_s > 0 ? static_cast<double>(count) / duration_s : 0;
  };
  report.request_throughput = rate(report.completed);
  report.output_throughput = rate(report.total_output);
  report.total_token_throughput = rate(report.total_input + report.total_output);
  report.request_goodput = rate(num_good);
  report.ttft = distribution(ttft, options.percentiles);
  report.tpot = distribution(tpot, options.percentiles);
  report.itl = distribution(itl, options.percentiles);
  report.e2el = distribution(e2el, options.percentiles);
  find_peaks(results, report);
  return report;
}

std::string report_text(const LoadReport& report, const ReportOptions& options) {
  std::string text = centred(" Serving Benchmark Result ", '=');
  text += row("Successful requests:", report.completed);
  text += row("Failed requests:", report.failed);
  if (options.max_concurrency > 0)
    text += row("Maximum request concurrency:", options.max_concurrency);
  if (std::isfinite(options.request_rate))
    text += row("Request rate configured (RPS):", "%.2f", options.request_rate);
  text += row("Benchmark duration (s):", "%.2f", report.duration_s);
  text += row("Total input tokens:", report.total_input);
  text += row("Total generated tokens:", report.total_output);
  text += row("Request throughput (req/s):", "%.2f", report.request_throughput);
  if (!options.goodput.empty())
    text += row("Request goodput (req/s):", "%.2f", report.request_goodput);
  text += row("Output token throughput (tok/s):", "%.2f", report.output_throughput);
  text += row("Peak output token throughput (tok/s):", "%.2f", report.max_output_tokens_per_s);
  text +=
      row("Peak concurrent requests:", "%.2f", static_cast<double>(report.max_concurrent_requests));
  text += row("Total token throughput (tok/s):", "%.2f", report.total_token_throughput);
  for (const MetricName& metric : kMetricNames) {
    if (!is_wanted(metric, options)) continue;
    const Distribution& values = report.*metric.values;
    const std::string unit = std::string(" ") + metric.shown + " (ms):";
    const auto shown = [&](const std::string& name, double value) {
      return values.count > 0 ? row(name + unit, "%.2f", value) : row(name + unit, "n/a");
    };
    text += centred(metric.title, '-');
    text += shown("Mean", values.mean);
    text += shown("Median", values.median);
    for (const auto& [percent, value] : values.percentiles)
      text += shown("P" + percent_name(percent), value);
  }
  if (report.prefix_cache_hit_rate) {
    text += centred("Prefix Cache", '-');
    text += row("Hit rate (%):", "%.2f", *report.prefix_cache_hit_rate * 100);
  }
  if (report.drafts) text += draft_text(*report.drafts);
  return text + std::string(50, '=') + "\n";
}

Json report_json(const LoadReport& report, const ReportOptions& options) {
  Json json = Json::object(
      {{"duration", report.duration_s},
       {"completed", report.completed},
       {"failed", report.failed},
       {"total_input_tokens", report.total_input},
       {"total_output_tokens", report.total_output},
       {"request_throughput", report.request_throughput},
       {"request_goodput", options.goodput.empty() ? Json() : Json(report.request_goodput)},
       {"output_throughput", report.output_throughput},
       {"total_token_throughput", report.total_token_throughput},
       {"max_output_tokens_per_s", report.max_output_tokens_per_s},
       {"max_concurrent_requests", report.max_concurrent_requests}});
  for (const MetricName& metric : kMetricNames) {
    if (!is_wanted(metric, options)) continue;
    const Distribution& values = report.*metric.values;
    const std::string unit = std::string("_") + metric.key + "_ms";
    const auto shown = [&](double value) { return values.count > 0 ? Json(value) : Json(); };
    json["mean" + unit] = shown(values.mean);
    json["median" + unit] = shown(values.median);
    json["std" + unit] = shown(values.std);
    for (const auto& [percent, value] : values.percentiles)
      json["p" + percent_name(percent) + unit] = shown(value);
  }
  if (report.prefix_cache_hit_rate) json["prefix_cache_hit_rate"] = *report.prefix_cache_hit_rate;
  if (!report.drafts) return json;
  json["spec_decode_acceptance_rate"] = report.drafts->acceptance_rate() * 100;
  json["spec_decode_acceptance_length"] = report.drafts->acceptance_length();
  json["spec_decode_num_drafts"] = report.drafts->drafts;
  json["spec_decode_draft_tokens"] = report.drafts->draft_tokens;
  json["spec_decode_accepted_tokens"] = report.drafts->accepted_tokens;
  Json positions = Json::array();
  for (const double share : report.drafts->per_position) positions.push_back(share);
  json["spec_decode_per_position_acceptance_rates"] = std::move(positions);
  return json;
}

Json detail_json(const std::vector<LoadResult>& results) {
  Json json = Json::object();
  for (const char* key :
       {"input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"})
    json[key] = Json::array();
  for (const LoadResult& result : results) {
    json["input_lens"].push_back(result.prompt_len);
    json["output_lens"].push_back(result.output_len);
    json["ttfts"].push_back(result.ttft_s);
    Json intervals = Json::array();
    for (const double interval : result.itl_s) intervals.push_back(interval);
    json["itls"].push_back(std::move(intervals));
    json["start_times"].push_back(result.start_s);
    json["generated_texts"].push_back(result.text);
    json["errors"].push_back(result.error);
  }
  return json;
}

}  // namespace coppice
