#include "server/server_metrics.h"

#include <algorithm>
#include <cstdio>

namespace coppice {
namespace {

// Decades cut at 1, 2, 5.
std::vector<double> decades(double lowest, double highest) {
  std::vector<double> bounds;
  for (double decade = lowest; decade <= highest; decade *= 10)
    for (const double step : {1.0, 2.0, 5.0})
      if (decade * step <= highest) bounds.push_back(decade * step);
  return bounds;
}

const std::vector<double> kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                         0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                         20,    40,    80,   160,  640,  2560};
const std::vector<double> kInterToken = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                         0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const std::vector<double> kLatency = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

double seconds(std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(std::max<std::int64_t>(to_ns - from_ns, 0)) / 1e9;
}

// Writes metrics one after the other, each with its type line.
class MetricsText {
 public:
  explicit MetricsText(std::string labels) : labels_(std::move(labels)) {}

  void add(const char* type, const std::string& name, double value,
           const std::string& more_labels = "") {
    if (name != last_) text_ += "# TYPE " + name + " " + type + "\n";
    last_ = name;
    text_ += name + "{" + labels_ + more_labels + "} " + number(value) + "\n";
  }
  void counter(const std::string& name, double value, const std::string& more = "") {
    add("counter", name, value, more);
  }
  void gauge(const std::string& name, double value, const std::string& more = "") {
    add("gauge", name, value, more);
  }
  void histogram(const std::string& name, const Histogram& histogram) {
    text_ += "# TYPE " + name + " histogram\n";
    histogram.write(name, labels_, text_);
  }
  const std::string& text() const { return text_; }

 private:
  std::string labels_, text_, last_;
};

void write_vllm(const EngineStatus& status, MetricsText& out) {
  const EngineMetrics& engine = status.metrics;
  out.gauge("vllm:num_requests_running", static_cast<double>(engine.num_running));
  out.gauge("vllm:num_requests_waiting", static_cast<double>(status.num_waiting()));
  out.gauge("vllm:kv_cache_usage_perc", engine.num_kv_blocks > 0
                                            ? static_cast<double>(engine.num_kv_blocks_used) /
                                                  static_cast<double>(engine.num_kv_blocks)
                                            : 0);
  out.counter("vllm:num_preemptions_total", static_cast<double>(engine.num_preemptions));
  out.counter("vllm:prefix_cache_queries_total", static_cast<double>(engine.num_prefix_queries));
  out.counter("vllm:prefix_cache_hits_total", static_cast<double>(engine.num_prefix_hits));
  out.gauge("vllm:cache_config_info", 1,
            ",block_size=\"64\",num_gpu_blocks=\"" + std::to_string(engine.num_kv_blocks) + "\"");
  out.counter("vllm:spec_decode_num_drafts_total", static_cast<double>(engine.num_sequence_rounds));
  out.counter("vllm:spec_decode_num_draft_tokens_total",
              static_cast<double>(engine.num_draft_tokens));
  out.counter("vllm:spec_decode_num_accepted_tokens_total",
              static_cast<double>(engine.num_accepted_tokens));
  for (std::size_t depth = 1; depth < engine.accepted_at_depth.size(); ++depth)
    out.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                static_cast<double>(engine.accepted_at_depth[depth]),
                ",position=\"" + std::to_string(depth - 1) + "\"");
}

void write_own(const EngineStatus& status, MetricsText& out) {
  const EngineMetrics& engine = status.metrics;
  out.counter("coppice:rounds_total", static_cast<double>(engine.num_rounds));
  out.counter("coppice:decode_tokens_total", static_cast<double>(engine.num_decode_tokens));
  out.gauge("coppice:tokens_per_round", engine.tokens_per_round());
  for (std::size_t i = 0; i < kNumVerbs; ++i)
    out.counter("coppice:round_verb_seconds_total", static_cast<double>(engine.verb_ns[i]) / 1e9,
                std::string(",verb=\"") + name_of(static_cast<Verb>(i)) + "\"");
  out.counter("coppice:decode_seconds_total", static_cast<double>(engine.decode_ns) / 1e9);
  out.counter("coppice:prefill_seconds_total", static_cast<double>(engine.prefill_ns) / 1e9);
  out.counter("coppice:prefill_steps_total", static_cast<double>(engine.num_prefill_steps));
  out.counter("coppice:prefill_tokens_total", static_cast<double>(engine.num_prefill_tokens));
  out.counter("coppice:grammar_rounds_total", static_cast<double>(engine.num_grammar_rounds));
  out.counter("coppice:grammar_draft_tokens_total",
              static_cast<double>(engine.num_grammar_draft_tokens));
  out.counter("coppice:grammar_accepted_tokens_total",
              static_cast<double>(engine.num_grammar_accepted_tokens));
  out.counter("coppice:mask_seconds_total", static_cast<double>(engine.mask_ns) / 1e9);
  out.counter("coppice:not_finite_total", static_cast<double>(engine.num_not_finite));
  for (std::size_t depth = 1; depth < engine.drafts_at_depth.size(); ++depth)
    out.counter("coppice:drafts_at_depth_total", static_cast<double>(engine.drafts_at_depth[depth]),
                ",depth=\"" + std::to_string(depth) + "\"");
  out.gauge("coppice:requests_in_flight", static_cast<double>(status.in_flight));
  out.gauge("coppice:step_age_seconds", status.step_age_s);
  out.gauge("coppice:ready", status.ready() ? 1 : 0);
}

}  // namespace

void Histogram::observe(double value, std::int64_t times) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(at)] += times;
  sum_ += value * static_cast<double>(times);
  total_ += times;
}

void Histogram::write(const std::string& name, const std::string& labels, std::string& out) const {
  std::int64_t below = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? number(bounds_[i]) : "+Inf";
    out += name + "_bucket{" + labels + ",le=\"" + bound + "\"} " + std::to_string(below) + "\n";
  }
  out += name + "_sum{" + labels + "} " + number(sum_) + "\n";
  out += name + "_count{" + labels + "} " + std::to_string(total_) + "\n";
}

ServerMetrics::ServerMetrics() {
  const auto make = [this](const char* name, const std::vector<double>& bounds) {
    histograms_.emplace(name, Histogram(bounds));
  };
  make("vllm:time_to_first_token_seconds", kFirstToken);
  make("vllm:inter_token_latency_seconds", kInterToken);
  make("vllm:request_time_per_output_token_seconds", kInterToken);
  make("vllm:e2e_request_latency_seconds", kLatency);
  make("vllm:request_queue_time_seconds", kLatency);
  make("vllm:request_prefill_time_seconds", kLatency);
  make("vllm:request_decode_time_seconds", kLatency);
  make("vllm:request_inference_time_seconds", kLatency);
  make("vllm:request_prompt_tokens", decades(1, 1e6));
  make("vllm:request_generation_tokens", decades(1, 1e6));
  make("vllm:request_max_num_generation_tokens", decades(1, 1e6));
  make("vllm:iteration_tokens_total", {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096});
  make("coppice:inter_token_latency_seconds", decades(1e-4, 1));
  for (const char* reason : {"stop", "length", "abort", "error", "dead_end"}) success_[reason] = 0;
}

void ServerMetrics::observe_step(double interval_s, std::int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  totals_.generation_tokens += num_tokens;
  histograms_.at("vllm:iteration_tokens_total").observe(static_cast<double>(num_tokens));
  if (interval_s < 0 || num_tokens == 0) return;
  histograms_.at("vllm:inter_token_latency_seconds").observe(interval_s);
  histograms_.at("coppice:inter_token_latency_seconds").observe(interval_s);
}

void ServerMetrics::observe_end(const RequestStats& stats, std::int64_t max_tokens,
                                const std::string& reason) {
  const double queue = seconds(stats.arrival_ns, stats.start_ns);
  const double prefill = seconds(stats.start_ns, stats.first_token_ns);
  const double first = queue + prefill;
  const double decode = seconds(stats.first_token_ns, stats.end_ns);
  const auto tokens = static_cast<double>(stats.num_output_tokens);
  const std::lock_guard lock(mutex_);
  const auto observe = [this](const char* name, double value) {
    histograms_.at(name).observe(value);
  };
  observe("vllm:time_to_first_token_seconds", first);
  observe("vllm:request_queue_time_seconds", queue);
  observe("vllm:request_prefill_time_seconds", prefill);
  observe("vllm:request_decode_time_seconds", decode);
  observe("vllm:request_inference_time_seconds", prefill + decode);
  observe("vllm:e2e_request_latency_seconds", first + decode);
  if (tokens > 1) observe("vllm:request_time_per_output_token_seconds", decode / (tokens - 1));
  observe("vllm:request_prompt_tokens", static_cast<double>(stats.num_prompt_tokens));
  observe("vllm:request_generation_tokens", tokens);
  observe("vllm:request_max_num_generation_tokens", static_cast<double>(max_tokens));
  totals_.prompt_tokens += stats.num_prompt_tokens;
  totals_.cached_tokens += stats.num_cached_tokens;
  ++success_[reason];
}

void ServerMetrics::observe_abort() {
  const std::lock_guard lock(mutex_);
  ++success_["abort"];
}

ServerMetrics::Totals ServerMetrics::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

std::string ServerMetrics::write(const EngineStatus& status, const std::string& model_name) const {
  std::string label = model_name;
  std::erase_if(label, [](char c) { return c == '"' || c == '\\' || c == '\n'; });
  MetricsText out("model_name=\"" + label + "\",engine=\"0\"");
  write_vllm(status, out);
  const std::lock_guard lock(mutex_);
  out.counter("vllm:prompt_tokens_total", static_cast<double>(totals_.prompt_tokens));
  out.counter("vllm:prompt_tokens_cached_total", static_cast<double>(totals_.cached_tokens));
  out.counter("vllm:generation_tokens_total", static_cast<double>(totals_.generation_tokens));
  for (const auto& [reason, count] : success_)
    out.counter("vllm:request_success_total", static_cast<double>(count),
                ",finished_reason=\"" + reason + "\"");
  for (const auto& [name, histogram] : histograms_) out.histogram(name, histogram);
  write_own(status, out);
  return out.text();
}

}  // namespace coppice
