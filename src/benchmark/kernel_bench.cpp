#include "benchmark/kernel_bench.h"

#include <algorithm>
#include <cstdarg>
#include <limits>
#include <span>

#include "backend/factory/make_backend.h"
#include "base/error.h"
#include "io/json_field.h"

namespace coppice {
namespace {

std::vector<KernelCase> all_cases(bool small) {
  std::vector<KernelCase> cases;
  const std::vector<NetworkShape> networks =
      small ? std::vector{tiny_shape()} : std::vector{kimi_k2_shape(8), kimi_k2_shape(1)};
  for (const NetworkShape& network : networks) {
    add_expert_cases(cases, network);
    add_block_cases(cases, network);
    add_attention_cases(cases, network);
    add_dense_cases(cases, network);
    add_row_cases(cases, network);
  }
  add_gqa_cases(cases, networks[0]);
  add_round_cases(cases, networks[0]);
  return cases;
}

// Makes the rows equal in which the first output differs; false if those are more than a quarter.
bool leave_out_other_choices(const BuiltCase& built, std::vector<std::vector<float>>& ours,
                             const std::vector<std::vector<float>>& theirs) {
  const std::int64_t rows = built.outputs[0].shape(0);
  std::int64_t left_out = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto range = [&](const std::vector<float>& values, std::size_t output) {
      const std::int64_t size = built.outputs[output].row_size();
      return std::span(values).subspan(static_cast<std::size_t>(row * size),
                                       static_cast<std::size_t>(size));
    };
    if (std::ranges::equal(range(ours[0], 0), range(theirs[0], 0))) continue;
    ++left_out;
    for (std::size_t i = 0; i < ours.size(); ++i)
      std::ranges::copy(range(theirs[i], i), ours[i].begin() + row * built.outputs[i].row_size());
  }
  return 4 * left_out <= rows;
}

// Builds the case on the CPU reference, runs it once and compares every output.
double error_against_reference(BenchSide& side, const BuiltCase& built, const KernelCase& what) {
  const BackendOptions options = {.device = "cpu-reference", .num_threads = 0};
  const auto backend = make_backend(options);
  const auto meter = make_device_meter(*backend, options);
  BenchSide reference(*backend, *meter);
  const BuiltCase expected = what.build(reference);
  expected.run(0);
  COPPICE_CHECK_EQ(built.outputs.size(), expected.outputs.size());
  std::vector<std::vector<float>> ours, theirs;
  for (std::size_t i = 0; i < built.outputs.size(); ++i) {
    ours.push_back(side.read(built.outputs[i]));
    theirs.push_back(reference.read(expected.outputs[i]));
  }
  if (what.chooses && !leave_out_other_choices(built, ours, theirs))
    return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < ours.size(); ++i)
    worst = std::max(worst, row_error(ours[i], theirs[i], built.outputs[i].row_size()));
  return worst;
}

KernelResult run_case(const KernelCase& what, Backend& backend, DeviceMeter& meter,
                      bool check_only) {
  BenchSide side(backend, meter);
  const BuiltCase built = what.build(side);
  built.run(0);
  backend.synchronize();
  KernelResult result = {.what = what, .us = {}, .bytes = built.bytes, .flops = built.flops};
  result.first_bytes = built.first_bytes > 0 ? built.first_bytes : built.bytes;
  result.error = what.error ? what.error(side, built) : error_against_reference(side, built, what);
  result.wrong = !(result.error <= what.bound);
  if (result.wrong || check_only) return result;
  const auto call = [&](std::int64_t i) { built.run(i % built.num_copies); };
  meter.stamp(0);
  for (std::int64_t i = 0; i < 3; ++i) call(i);
  meter.stamp(1);
  const std::int64_t calls =
      std::min(calls_for(meter.microseconds(0, 1) / 3, built.num_copies), built.max_calls);
  constexpr int kReplays = 11;
  result.us = time_calls(backend, meter, calls, kReplays, call);
  return result;
}

// Per microsecond.
double rate(double amount, const Spread& us) {
  return us.median > 0 ? amount / us.median : 0;
}

Json number_or_null(double value) {
  return value > 0 ? Json(value) : Json();
}

// The parts of "a,b".
std::vector<std::string> parts_of(const std::string& filter) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= filter.size();) {
    const std::size_t end = std::min(filter.find(',', begin), filter.size());
    parts.push_back(filter.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Cases whose names contain a part of the filter, all without one. A part that is in no name is a
// mistake, and so is an empty one, which is in all.
void keep_matching(std::vector<KernelCase>& cases, const std::string& filter) {
  if (filter.empty()) return;
  const std::vector<std::string> parts = parts_of(filter);
  const auto has = [](const KernelCase& what, const std::string& part) {
    return what.key.find(part) != std::string::npos;
  };
  for (const std::string& part : parts) {
    const std::string where = "--filter '" + filter + "': ";
    if (part.empty()) throw Error(ErrorKind::kInvalidArgument, where + "a part of it is empty");
    if (std::ranges::none_of(cases, [&](const KernelCase& what) { return has(what, part); }))
      throw Error(ErrorKind::kInvalidArgument, where + "'" + part + "' matches no case");
  }
  std::erase_if(cases, [&](const KernelCase& what) {
    return std::ranges::none_of(parts, [&](const std::string& part) { return has(what, part); });
  });
}

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* text, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof(line), text, arguments);
  va_end(arguments);
  return line;
}

}  // namespace

Json read_peers(const std::string& path) {
  Json document = read_json_file(path);
  const JsonField root(document, path);
  root.get<double>("tensor_tflops", 0);
  for (const auto& [key, peers] : root.at("peers").members())
    for (const JsonField& peer : peers.elements()) {
      peer.get<std::string>("name");
      peer.get<double>("us");
    }
  return document;
}

bool KernelReport::all_right() const {
  return std::none_of(results.begin(), results.end(),
                      [](const KernelResult& result) { return result.wrong; });
}

Json KernelReport::as_json() const {
  Json json = head;
  json["tensor_tflops"] = number_or_null(tensor_tflops);
  Json cases = Json::array();
  for (const KernelResult& r : results) {
    const double gb_per_s = rate(r.bytes, r.us) * 1e-3;
    Json item = Json::object({{"key", r.what.key},
                              {"kernel", r.what.kernel},
                              {"shape", r.what.shape},
                              {"us", number_or_null(r.us.median)},
                              {"us_min", number_or_null(r.us.min)},
                              {"us_max", number_or_null(r.us.max)},
                              {"bytes", r.bytes},
                              {"first_call_bytes", r.first_bytes},
                              {"flops", r.flops},
                              {"gb_per_s", gb_per_s},
                              {"tflops", rate(r.flops, r.us) * 1e-6}});
    item["share_of_read"] =
        ceiling.read_gb_per_s > 0 ? Json(gb_per_s / ceiling.read_gb_per_s) : Json();
    item["floor_us"] = r.floor_us;
    item["over_floor"] = r.floor_us > 0 ? Json(r.us.median / r.floor_us) : Json();
    item["target_us"] = number_or_null(r.target_us);
    item["peer"] = r.peer.name.empty() ? Json() : Json(r.peer.name);
    item["peer_us"] = number_or_null(r.peer.us);
    item["error"] = r.error;
    item["wrong"] = r.wrong;
    cases.push_back(std::move(item));
  }
  json["cases"] = std::move(cases);
  return json;
}

std::string table_head(const DeviceCeiling& ceiling) {
  const bool timed = ceiling.read_gb_per_s > 0;
  return (timed ? format("read ceiling %.0f GB/s, one launch %.2f us, one node %.2f us\n",
                         ceiling.read_gb_per_s, ceiling.fixed_us, ceiling.node_us)
                : std::string("compared, not timed\n")) +
         format("%-34s %9s %7s %8s %6s %6s %7s %7s %9s %-12s %s\n", "case", "us", "+-", "MB",
                "GB/s", "read", "floor", "target", "peer us", "peer", "error");
}

std::string table_line(const KernelResult& r, const DeviceCeiling& ceiling) {
  const char* const key = r.what.key.c_str();
  if (r.wrong) return format("%-34s WRONG: error %.3g, allowed %.3g\n", key, r.error, r.what.bound);
  const double gb_per_s = rate(r.bytes, r.us) * 1e-3;
  const auto optional = [](double value, const char* text) {
    return value > 0 ? format(text, value) : std::string("-");
  };
  return format("%-34s %9.2f %7.2f %8.1f %6.0f %5.0f%% %7s %7s %9s %-12s %.1e\n", key, r.us.median,
                (r.us.max - r.us.min) / 2, r.bytes * 1e-6, gb_per_s,
                ceiling.read_gb_per_s > 0 ? 100 * gb_per_s / ceiling.read_gb_per_s : 0,
                optional(r.floor_us > 0 ? r.us.median / r.floor_us : 0, "%.2fx").c_str(),
                optional(r.target_us, "%.4g").c_str(), optional(r.peer.us, "%.2f").c_str(),
                r.peer.name.empty() ? "-" : r.peer.name.c_str(), r.error);
}

KernelReport run_kernel_bench(Backend& backend, DeviceMeter& meter,
                              const KernelBenchOptions& options,
                              const KernelBenchObserver& observer) {
  const bool is_cpu = backend.device() == Device::kCpu;
  std::vector<KernelCase> cases = all_cases(is_cpu);
  keep_matching(cases, options.filter);
  KernelReport report;
  if (!options.check_only) report.ceiling = measure_ceiling(backend, meter);
  report.head =
      describe_run(backend, meter, report.ceiling, "coppice-bench-kernels-1", options.command);
  if (const Json* const tflops = options.peers.find("tensor_tflops"); tflops != nullptr)
    report.tensor_tflops = tflops->as_double();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    observer.begin(i, cases.size(), cases[i].key);
    KernelResult result = run_case(cases[i], backend, meter, options.check_only);
    const double arithmetic =
        report.tensor_tflops > 0 ? result.flops / report.tensor_tflops * 1e-6 : 0;
    if (!options.check_only)
      result.floor_us =
          std::max(report.ceiling.floor_us(result.bytes), report.ceiling.fixed_us + arithmetic);
    result.target_us = is_cpu ? 0 : target_us(cases[i].key);
    result.peer = fastest_peer(options.peers, cases[i].key);
    report.results.push_back(std::move(result));
    observer.end(report);
  }
  return report;
}

}  // namespace coppice
