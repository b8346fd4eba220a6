#include "server/stats_log.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "io/json.h"

namespace coppice {
namespace {

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

std::string speculation_line(const EngineMetrics& now, const EngineMetrics& last, double seconds) {
  const auto since = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a - b); };
  const double rounds = since(now.num_sequence_rounds, last.num_sequence_rounds);
  const double drafted = since(now.num_draft_tokens, last.num_draft_tokens);
  const double accepted = since(now.num_accepted_tokens, last.num_accepted_tokens);
  std::string rates;
  for (std::size_t depth = 1; depth < now.accepted_at_depth.size(); ++depth) {
    const bool had = depth < last.accepted_at_depth.size();
    const double count =
        since(now.accepted_at_depth[depth], had ? last.accepted_at_depth[depth] : 0);
    rates += format(rates.empty() ? "%.3f" : ", %.3f", ratio(count, rounds));
  }
  return format(
             "SpecDecoding metrics: Mean acceptance length: %.2f, Accepted throughput: %.2f "
             "tokens/s, Drafted throughput: %.2f tokens/s, Accepted: %.0f tokens, Drafted: %.0f "
             "tokens, Per-position acceptance rate: ",
             1 + ratio(accepted, rounds), accepted / seconds, drafted / seconds, accepted,
             drafted) +
         rates + format(", Avg Draft acceptance rate: %.1f%%", 100 * ratio(accepted, drafted));
}

}  // namespace

std::vector<std::string> StatsLog::lines(const EngineStatus& status,
                                         const ServerMetrics::Totals& totals) {
  const std::int64_t now_ns = clock_.now_ns();
  const double seconds = static_cast<double>(now_ns - last_ns_) / 1e9;
  const EngineMetrics& now = status.metrics;
  const std::int64_t prefilled = now.num_prefill_tokens - last_.num_prefill_tokens;
  const std::int64_t generated = totals.generation_tokens - last_totals_.generation_tokens;
  std::vector<std::string> lines;
  if (status.in_flight > 0 || prefilled > 0 || generated > 0) {
    lines.push_back(format(
        "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: "
        "%lld reqs, Waiting: %lld reqs, GPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
        static_cast<double>(prefilled) / seconds, static_cast<double>(generated) / seconds,
        static_cast<long long>(now.num_running), static_cast<long long>(status.num_waiting()),
        100 * ratio(static_cast<double>(now.num_kv_blocks_used),
                    static_cast<double>(now.num_kv_blocks)),
        100 * ratio(static_cast<double>(now.num_prefix_hits),
                    static_cast<double>(now.num_prefix_queries))));
  }
  if (now.num_draft_tokens > last_.num_draft_tokens)
    lines.push_back(speculation_line(now, last_, seconds));
  last_ns_ = now_ns;
  last_ = now;
  last_totals_ = totals;
  return lines;
}

void use_server_log_format(bool json) {
  set_log_sink([json](LogLevel level, std::string_view line) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char stamp[32];
    if (json) {
      std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S%z", &local);
      const std::string text = write_json(
          Json::object({{"time", stamp}, {"level", level_name(level)}, {"message", line}}));
      std::fprintf(stderr, "%s\n", text.c_str());
      return;
    }
    std::strftime(stamp, sizeof stamp, "%m-%d %H:%M:%S", &local);
    std::fprintf(stderr, "%s %s [coppice] %.*s\n", level_name(level), stamp,
                 static_cast<int>(line.size()), line.data());
  });
}

}  // namespace coppice
