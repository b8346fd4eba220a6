#include "client/top_view.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace coppice {
namespace {

std::string bar(double share) {
  constexpr int kWidth = 30;
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * kWidth));
  return "[" + std::string(static_cast<std::size_t>(full), '#') +
         std::string(static_cast<std::size_t>(kWidth - full), '.') + "]";
}

template <typename... Values>
std::string line(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return std::string(text) + "\n";
}

std::string milliseconds(double seconds) {
  char text[32];
  if (std::isnan(seconds)) return "-";
  std::snprintf(text, sizeof text, "%.1f ms", seconds * 1000);
  return text;
}

std::string latency(const char* title, const char* histogram, const MetricsSnapshot& before,
                    const MetricsSnapshot& now) {
  return line("  %-18s p50 %12s   p99 %12s", title,
              milliseconds(now.quantile(histogram, 0.5, before)).c_str(),
              milliseconds(now.quantile(histogram, 0.99, before)).c_str());
}

std::string rounds(const MetricsSnapshot& before, const MetricsSnapshot& now) {
  const auto since = [&](const char* name) { return now.sum(name) - before.sum(name); };
  const double drafts = since("vllm:spec_decode_num_drafts_total");
  const double drafted = since("vllm:spec_decode_num_draft_tokens_total");
  const double accepted = since("vllm:spec_decode_num_accepted_tokens_total");
  std::string text;
  if (drafts > 0 && drafted > 0) {
    text += line("Rounds  %.2f tokens a round, %.1f nodes verified, %.1f %% of them accepted",
                 1 + accepted / drafts, drafted / drafts, 100 * accepted / drafted);
    constexpr const char* kPerPosition = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    const auto earlier = before.by_label(kPerPosition, "position");
    for (const auto& [position, count] : now.by_label(kPerPosition, "position")) {
      double value = count;
      for (const auto& [name, old] : earlier)
        if (name == position) value -= old;
      text += line("  depth %-3d %s %5.1f %%", std::atoi(position.c_str()) + 1,
                   bar(value / drafts).c_str(), 100 * value / drafts);
    }
  }
  const double decode = since("coppice:decode_seconds_total");
  if (decode <= 0) return text;
  text += line("Where decode time went (%.0f ms)", decode * 1000);
  constexpr const char* kVerbs = "coppice:round_verb_seconds_total";
  const auto earlier = before.by_label(kVerbs, "verb");
  for (const auto& [verb, seconds] : now.by_label(kVerbs, "verb")) {
    double value = seconds;
    for (const auto& [name, old] : earlier)
      if (name == verb) value -= old;
    if (value > 0)
      text += line("  %-12s %s %5.1f %%", verb.c_str(), bar(value / decode).c_str(),
                   100 * value / decode);
  }
  return text;
}

}  // namespace

std::string top_view(const std::string& url, const MetricsSnapshot& before,
                     const MetricsSnapshot& now, double seconds) {
  const auto rate = [&](const char* name) {
    return seconds > 0 ? (now.sum(name) - before.sum(name)) / seconds : 0;
  };
  const double usage = now.sum("vllm:kv_cache_usage_perc");
  const double queries = now.sum("vllm:prefix_cache_queries_total");
  std::string text = line("coppice top  %s   %s", url.c_str(),
                          now.sum("coppice:ready") > 0 ? "ready" : "NOT READY");
  text += line("Running %.0f   Waiting %.0f   Preemptions %.0f   Step age %.2f s",
               now.sum("vllm:num_requests_running"), now.sum("vllm:num_requests_waiting"),
               now.sum("vllm:num_preemptions_total"), now.sum("coppice:step_age_seconds"));
  text += line("KV cache %s %5.1f %%   Prefix cache hits %.1f %%", bar(usage).c_str(), 100 * usage,
               queries > 0 ? 100 * now.sum("vllm:prefix_cache_hits_total") / queries : 0.0);
  text += line("Throughput  prompt %.1f tokens/s   generation %.1f tokens/s   %.2f requests/s",
               rate("coppice:prefill_tokens_total"), rate("vllm:generation_tokens_total"),
               rate("vllm:request_success_total"));
  text += latency("time to first token", "vllm:time_to_first_token_seconds", before, now);
  text += latency("between steps", "coppice:inter_token_latency_seconds", before, now);
  text += latency("whole request", "vllm:e2e_request_latency_seconds", before, now);
  return text + rounds(before, now);
}

}  // namespace coppice
