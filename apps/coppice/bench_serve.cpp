// coppice bench serve | sweep: a server under load, measured and printed as vLLM does.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "client/pareto_plot.h"
#include "io/json_field.h"
#include "load_flags.h"
#include "output_file.h"
#include "parse_flags.h"
#include "verbs.h"

namespace coppice {
namespace {

struct SweepPoint {
  double request_rate = 0;
  std::int64_t max_concurrency = 0;
};

std::vector<SweepPoint> sweep_points(const std::vector<std::string>& rates,
                                     const std::vector<std::int64_t>& concurrencies) {
  std::vector<SweepPoint> points;
  for (const std::string& rate : rates) {
    LoadFlags one;
    one.request_rate = rate;
    for (const std::int64_t concurrency : concurrencies)
      points.push_back({one.rate(), concurrency});
  }
  return points;
}

std::string csv_of(const std::vector<Json>& results) {
  constexpr const char* kColumns[] = {"request_rate", "max_concurrency",    "completed",
                                      "failed",       "request_throughput", "output_throughput",
                                      "mean_ttft_ms", "p99_ttft_ms",        "mean_tpot_ms",
                                      "p99_tpot_ms",  "mean_e2el_ms"};
  std::string text;
  for (const char* column : kColumns) text += (text.empty() ? "" : ",") + std::string(column);
  text += "\n";
  for (const Json& result : results) {
    std::string line;
    for (const char* column : kColumns) {
      const Json* value = result.find(column);
      line += column == kColumns[0] ? "" : ",";
      if (value != nullptr && !value->is_null())
        line += value->is_string() ? value->as_string() : write_json(*value);
    }
    text += line + "\n";
  }
  return text;
}

PlotPoint plot_point(const Json& result) {
  const JsonField field(result, "result");
  const double per_token_ms = field.get<double>("mean_tpot_ms", 0.0);
  std::string label = "c=";
  label += std::to_string(field.get<std::int64_t>("max_concurrency", 0));
  const Json& rate = field.at("request_rate").value();
  if (!rate.is_string()) label += " r=" + write_json(rate);
  return {.x = per_token_ms > 0 ? 1000 / per_token_ms : 0,
          .y = field.get<double>("output_throughput"),
          .label = label};
}

}  // namespace

int run_bench_serve(int argc, char** argv) {
  CLI::App app("Measures a running server; flags and output are vLLM's.", "coppice bench serve");
  LoadFlags flags;
  flags.add_to(app);
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  const double rate = flags.rate();
  LoadTarget target(flags);
  std::optional<OutputFile> file;
  if (flags.save_result || flags.save_detailed)
    file.emplace(target.result_file(rate, flags.max_concurrency));
  const Json result = target.measure(rate, flags.max_concurrency);
  const bool measured = JsonField(result, "result").get<std::int64_t>("completed") > 0;
  if (measured && file) {
    file->write(write_json(result) + "\n");
    std::printf("Saved to %s\n", file->path().c_str());
  }
  return target.num_failed() == 0 ? 0 : 1;
}

int run_bench_sweep(int argc, char** argv) {
  CLI::App app("Measures a running server at several loads; writes a table and a Pareto plot.",
               "coppice bench sweep");
  LoadFlags flags;
  std::vector<std::string> rates = {"inf"};
  std::vector<std::int64_t> concurrencies = {1, 2, 4, 8, 16, 32};
  std::string output_dir = "sweep";
  flags.add_to(app);
  app.add_option("--request-rates", rates, "one run each")->delimiter(',');
  app.add_option("--max-concurrencies", concurrencies, "one run each")->delimiter(',');
  app.add_option("-o,--output-dir", output_dir, "results.json, results.csv, pareto.svg");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  const std::vector<SweepPoint> points = sweep_points(rates, concurrencies);
  const std::filesystem::path folder = output_dir;
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    throw Error(ErrorKind::kUnavailable,
                "--output-dir " + folder.string() + ": cannot be made: " + failed.message());
  const OutputFile json("--output-dir", folder / "results.json"),
      csv("--output-dir", folder / "results.csv"), svg("--output-dir", folder / "pareto.svg");
  LoadTarget target(flags);
  std::vector<Json> results;
  std::vector<PlotPoint> plot;
  for (const SweepPoint& point : points) {
    results.push_back(target.measure(point.request_rate, point.max_concurrency));
    plot.push_back(plot_point(results.back()));
    // After every point: a server that ends takes none of what was measured with it.
    json.write(write_json(Json(Json::Array(results)), {.indent = 1}) + "\n");
    csv.write(csv_of(results));
    svg.write(pareto_svg(plot, "tokens/s for one user", "output tokens/s of the server"));
  }
  std::printf("Saved to %s\n", folder.string().c_str());
  return target.num_failed() == 0 ? 0 : 1;
}

}  // namespace coppice
