#include "benchmark/round_bench.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "base/clock.h"
#include "base/error.h"
#include "benchmark/bench_round.h"
#include "benchmark/round_tracer.h"
#include "benchmark/timing.h"

namespace coppice {
namespace {

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* text, ...) {
  char line[320];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof(line), text, arguments);
  va_end(arguments);
  return line;
}

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

// The networks, and how much memory each part of them took.
struct Networks {
  std::unique_ptr<Model> model;
  std::unique_ptr<DflashModel> drafter;
  std::int64_t weights_bytes = 0, drafter_bytes = 0;
};

class RoundBench {
 public:
  RoundBench(RoundTracer& backend, DeviceMeter& meter, const NetworkShape& network,
             const RoundBenchOptions& options, const RoundBenchObserver& observer)
      : backend_(backend),
        meter_(meter),
        network_(network),
        options_(options),
        observer_(observer),
        ceiling_(measure_ceiling(backend, meter)) {}

  Json run();

 private:
  void check_points() const;
  void make_networks();
  Json describe_model() const;
  void run_point(const RoundPoint& point);
  Json measure(BenchRound& round, const RoundPoint& point, bool graph, double distinct);
  Spread time(BenchRound& round, bool graph);
  std::int64_t launches(BenchRound& round);

  RoundTracer& backend_;
  DeviceMeter& meter_;
  NetworkShape network_;
  RoundBenchOptions options_;
  RoundBenchObserver observer_;
  DeviceCeiling ceiling_;
  Networks networks_;
  Json memory_ = Json::object();
  Json rounds_ = Json::array();
};

void RoundBench::check_points() const {
  for (const std::int64_t batch : options_.batches)
    for (const std::int64_t rows : options_.rows)
      if (batch < 1 || rows < batch || rows % batch != 0)
        throw Error(
            ErrorKind::kInvalidArgument,
            "--rows " + std::to_string(rows) + ": no multiple of --batch " + std::to_string(batch));
}

void RoundBench::make_networks() {
  const ModelConfig config = model_config_of(network_, options_.num_layers);
  const bool drafting =
      largest(options_.rows) > *std::min_element(options_.batches.begin(), options_.batches.end());
  constexpr std::int64_t kBlock = 8;  // rows of a sequence in a draft
  const ModelOptions options = {
      .max_rows = std::max(largest(options_.rows), largest(options_.batches) * kBlock),
      .max_positions = largest(options_.contexts) + kRoundSlack,
      .parallel = {.rank = options_.rank, .size = options_.meet ? options_.num_ranks : 1},
      .max_batch = largest(options_.batches),
      .draft_window = 4096};
  const std::int64_t before = meter_.facts().free_bytes;
  networks_.model = make_random_target(backend_, meter_, config, options);
  const std::int64_t after = meter_.facts().free_bytes;
  networks_.weights_bytes = before - after;
  if (!drafting) return;
  networks_.drafter =
      make_random_drafter(backend_, meter_, drafter_config_of(network_, options_.num_ranks, config),
                          options_.num_ranks, *networks_.model, options);
  networks_.drafter_bytes = after - meter_.facts().free_bytes;
}

Json RoundBench::describe_model() const {
  const ModelConfig c = model_config_of(network_, options_.num_layers);
  Json json = Json::object({{"layers", c.num_hidden_layers},
                            {"tp", options_.num_ranks},
                            {"all_ranks", static_cast<bool>(options_.meet)},
                            {"network", network_.name},
                            {"hidden_size", c.hidden_size},
                            {"num_heads", c.num_attention_heads},
                            {"n_routed_experts", c.n_routed_experts},
                            {"num_experts_per_tok", c.num_experts_per_tok},
                            {"moe_intermediate_size", c.moe_intermediate_size},
                            {"vocab_size", c.vocab_size}});
  if (networks_.drafter == nullptr) return json;
  const DflashConfig d = drafter_config_of(network_, options_.num_ranks, c);
  json["drafter"] = Json::object({{"layers", d.network.num_hidden_layers},
                                  {"block_size", d.block_size},
                                  {"num_heads", d.network.num_attention_heads},
                                  {"num_kv_heads", d.network.num_key_value_heads},
                                  {"window", 4096}});
  return json;
}

Spread RoundBench::time(BenchRound& round, bool graph) {
  const auto body = [&](std::int64_t) {
    backend_.begin();
    round.run();
  };
  if (graph) return time_calls(backend_, meter_, 1, options_.repeats, body);
  std::vector<double> us;
  for (int i = 0; i < options_.repeats; ++i) {
    meter_.stamp(0);
    body(0);
    meter_.stamp(1);
    us.push_back(meter_.microseconds(0, 1));
  }
  return spread_of(std::move(us));
}

std::int64_t RoundBench::launches(BenchRound& round) {
  return meter_.count_launches([&] {
    backend_.begin();
    round.run();
  });
}

Json RoundBench::measure(BenchRound& round, const RoundPoint& point, bool graph, double distinct) {
  round.reset();
  backend_.enable_all();
  const Spread total = time(round, graph);
  std::vector<double> wall;
  const SteadyClock clock;
  const auto replay = [&] {
    backend_.run_graph({.kind = 9002}, [&] {
      backend_.begin();
      round.run();
    });
  };
  for (int i = 0; i < options_.repeats + 2; ++i) {
    const std::int64_t start = clock.now_ns();
    if (graph) {
      replay();
    } else {
      backend_.begin();
      round.run();
    }
    round.rows_used();  // what a host does once a round: waits for a few bytes
    if (i >= 2) wall.push_back(static_cast<double>(clock.now_ns() - start) * 1e-3);
  }
  backend_.forget_graphs();
  const double wall_us = spread_of(wall).median;

  Json stages = Json::object(), verify = Json::object(), counts = Json::object();
  double alone = 0, verify_us = 0;
  for (std::size_t i = 0; i < kNumRoundParts; ++i) {
    const auto part = RoundPart(i);
    backend_.enable_only([part](RoundPart other) { return other == part; });
    round.reset();
    const std::int64_t count = launches(round);
    const double us =
        count > 0 || backend_.device() == Device::kCpu ? time(round, graph).median : 0;
    counts[name_of(part)] = count;
    alone += std::max(us - static_cast<double>(count) * ceiling_.node_us, 0.0);
    (is_verify(part) ? verify : stages)[name_of(part)] = us;
  }
  backend_.enable_only(is_verify);
  round.reset();
  verify_us = time(round, graph).median;
  backend_.enable_all();
  stages["verify"] = verify_us;
  stages["host"] = std::max(wall_us - total.median, 0.0);
  return Json::object({{"context", point.context},
                       {"batch", point.batch},
                       {"rows", point.rows},
                       {"mode", graph ? "graph" : "eager"},
                       {"drafting", point.drafting()},
                       {"repeats", options_.repeats},
                       {"total_us", total.median},
                       {"total_us_min", total.min},
                       {"total_us_max", total.max},
                       {"wall_us", wall_us},
                       {"stages", stages},
                       {"verify", verify},
                       {"launches", counts},
                       {"kernels_alone_us", alone},
                       {"overhead", 1 - alone / total.median},
                       {"distinct_experts", distinct}});
}

std::string table_head() {
  return format(
      "%7s %5s %4s %-5s %9s %7s %8s %6s %6s %8s | %8s %8s %8s %7s %6s %6s %6s | %6s %6s %8s\n",
      "context", "batch", "rows", "mode", "total us", "+-", "draft", "build", "compile", "verify",
      "attn", "experts", "dense", "lm_head", "norms", "ranks", "sample", "commit", "host",
      "overhead");
}

std::string table_line(const Json& r) {
  const auto number = [](const Json& json, const char* key) { return json.find(key)->as_double(); };
  const Json &s = *r.find("stages"), &v = *r.find("verify");
  return format(
      "%7.0f %5.0f %4.0f %-5s %9.1f %7.1f %8.1f %6.1f %6.1f %8.1f | %8.1f %8.1f %8.1f %7.1f %6.1f "
      "%6.1f %6.1f | %6.1f %6.1f %7.1f%%\n",
      number(r, "context"), number(r, "batch"), number(r, "rows"),
      r.find("mode")->as_string().c_str(), number(r, "total_us"),
      (number(r, "total_us_max") - number(r, "total_us_min")) / 2, number(s, "draft"),
      number(s, "tree_build"), number(s, "compile"), number(s, "verify"), number(v, "attention"),
      number(v, "experts"), number(v, "dense"), number(v, "lm_head"), number(v, "norms"),
      number(v, "ranks"), number(v, "sampling"), number(s, "commit"), number(s, "host"),
      100 * number(r, "overhead"));
}

void RoundBench::run_point(const RoundPoint& point) {
  observer_.progress(
      format("context %lld, batch %lld, rows %lld", static_cast<long long>(point.context),
             static_cast<long long>(point.batch), static_cast<long long>(point.rows)));
  const std::int64_t before = meter_.facts().free_bytes;
  BenchRound round(backend_, meter_, *networks_.model, networks_.drafter.get(), point);
  const std::int64_t used = before - meter_.facts().free_bytes;
  if (options_.meet) options_.meet();  // no rank allocates while another runs
  backend_.enable_all();
  backend_.begin();
  round.run();  // sets the kernels up
  backend_.start_counting();
  backend_.begin();
  round.run();
  const double distinct = backend_.stop_counting();
  const std::int64_t rows = round.rows_used();
  if (rows != point.rows)
    throw Error(ErrorKind::kUnavailable,
                "a round of " + std::to_string(point.rows) + " rows had " + std::to_string(rows));
  for (const bool graph : {true, false}) {
    if (!graph && !options_.eager) continue;
    Json result = measure(round, point, graph, distinct);
    result["cache_and_buffers_bytes"] = used;
    observer_.line(table_line(result));
    rounds_.push_back(std::move(result));
  }
}

Json RoundBench::run() {
  check_points();
  observer_.progress("weights");
  make_networks();
  observer_.line(format(
      "read ceiling %.0f GB/s, one node %.2f us; weights %.2f GB, drafter %.2f GB\n",
      ceiling_.read_gb_per_s, ceiling_.node_us, static_cast<double>(networks_.weights_bytes) * 1e-9,
      static_cast<double>(networks_.drafter_bytes) * 1e-9));
  observer_.line(table_head());
  for (const std::int64_t context : options_.contexts)
    for (const std::int64_t batch : options_.batches)
      for (const std::int64_t rows : options_.rows)
        run_point({.context = context, .batch = batch, .rows = rows});
  Json json = describe_run(backend_, meter_, ceiling_, "coppice-bench-round-1", options_.command);
  json["model"] = describe_model();
  json["memory"] = Json::object(
      {{"weights_bytes", networks_.weights_bytes}, {"drafter_bytes", networks_.drafter_bytes}});
  json["rounds"] = std::move(rounds_);
  return json;
}

}  // namespace

Json run_round_bench(std::unique_ptr<Backend> backend, DeviceMeter& meter,
                     const RoundBenchOptions& options, const RoundBenchObserver& observer) {
  const NetworkShape network =
      backend->device() == Device::kCpu ? tiny_shape() : kimi_k2_shape(options.num_ranks);
  RoundTracer tracer(std::move(backend), network.vocab_size);
  return RoundBench(tracer, meter, network, options, observer).run();
}

}  // namespace coppice
