// coppice bench latency | throughput: the engine without a server, printed as vLLM does.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "client/datasets.h"
#include "client/load_report.h"
#include "load_flags.h"
#include "output_file.h"
#include "parse_flags.h"
#include "text_session.h"
#include "verbs.h"

namespace coppice {
namespace {

using SteadyTime = std::chrono::steady_clock;

double seconds_since(SteadyTime::time_point start) {
  return std::chrono::duration<double>(SteadyTime::now() - start).count();
}

void write_result(const OutputFile& file, const Json& json) {
  file.write(write_json(json, {.indent = 4}) + "\n");
}

// Runs all prompts at once; the number of tokens that came out.
std::int64_t run_all(TextSession& session, const std::vector<std::vector<std::int32_t>>& prompts,
                     const std::vector<BenchPrompt>& sizes, SamplingParams sampling) {
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    sampling.max_tokens = sizes[i].output_len;
    session.engine().add_request(
        {.prompt_token_ids = prompts[i], .sampling = sampling}, [&](const RequestOutput& output) {
          num_tokens += std::ssize(output.token_ids);
          if (output.end_reason == EndReason::kError)
            throw Error(ErrorKind::kUnavailable, "the model's logits held NaN or infinity");
        });
  }
  while (session.engine().step()) {
  }
  return num_tokens;
}

std::vector<std::vector<std::int32_t>> encode_all(const TextSession& session,
                                                  const std::vector<BenchPrompt>& prompts) {
  std::vector<std::vector<std::int32_t>> ids;
  for (const BenchPrompt& prompt : prompts)
    ids.push_back(session.tokenizer().encode_prompt(prompt.text));
  return ids;
}

struct OfflineFlags {
  SessionFlags session;
  DatasetOptions dataset;
  std::int64_t input_len = 0, output_len = 0;
  std::int64_t num_warmups = 0, num_iterations = 1;
  bool no_prefix_caching = false;
  std::string output_json;
};

// Seconds of every measured run, and the tokens that the last one made.
struct OfflineRuns {
  std::vector<double> seconds;
  std::int64_t num_output_tokens = 0;
};

OfflineRuns measure(TextSession& session, const OfflineFlags& flags,
                    const std::vector<std::vector<std::int32_t>>& ids,
                    const std::vector<BenchPrompt>& prompts) {
  OfflineRuns runs;
  for (std::int64_t i = -flags.num_warmups; i < flags.num_iterations; ++i) {
    const auto start = SteadyTime::now();
    runs.num_output_tokens = run_all(session, ids, prompts, flags.session.sampling);
    if (i >= 0) runs.seconds.push_back(seconds_since(start));
  }
  return runs;
}

Json list_of(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(value);
  return list;
}

void report_latency(const std::vector<double>& seconds, const OutputFile& output_json) {
  const double mean =
      std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
  std::printf("Avg latency: %.17g seconds\n", mean);
  Json percentiles = Json::object();
  for (const int percent : {10, 25, 50, 75, 90, 99}) {
    const double value = percentile(seconds, percent);
    std::printf("%d%% percentile latency: %.17g seconds\n", percent, value);
    percentiles[std::to_string(percent)] = value;
  }
  write_result(output_json, Json::object({{"avg_latency", mean},
                                          {"latencies", list_of(seconds)},
                                          {"percentiles", std::move(percentiles)}}));
}

void report_throughput(const OfflineRuns& runs, std::int64_t num_requests, std::int64_t input,
                       const OutputFile& output_json) {
  const double seconds = percentile(runs.seconds, 50);
  const std::int64_t output = runs.num_output_tokens;
  const auto rate = [&](std::int64_t count) { return static_cast<double>(count) / seconds; };
  std::printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n",
              rate(num_requests), rate(input + output), rate(output));
  std::printf("Total num prompt tokens:  %lld\nTotal num output tokens:  %lld\n",
              static_cast<long long>(input), static_cast<long long>(output));
  write_result(output_json, Json::object({{"elapsed_time", seconds},
                                          {"elapsed_times", list_of(runs.seconds)},
                                          {"output_tokens_per_second", rate(output)},
                                          {"num_requests", num_requests},
                                          {"total_num_tokens", input + output},
                                          {"requests_per_second", rate(num_requests)},
                                          {"tokens_per_second", rate(input + output)}}));
}

void add_throughput_flags(CLI::App& app, OfflineFlags& flags) {
  flags.session.add_to(app);
  app.add_option("--max-num-seqs", flags.session.engine.max_num_seqs, "sequences that run at once");
  add_dataset_flags(app, flags.dataset);
  app.add_option("--input-len", flags.input_len, "tokens of a prompt");
  app.add_option("--output-len", flags.output_len, "tokens of an output");
  app.add_option("--num-warmups", flags.num_warmups, "runs before the measured ones");
  app.add_option("--num-iters", flags.num_iterations, "measured runs; the median is printed")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--no-enable-prefix-caching", flags.no_prefix_caching, "compute every prompt whole");
  app.add_option("--output-json", flags.output_json, "write the results to this file");
}

}  // namespace

int run_bench_latency(int argc, char** argv) {
  OfflineFlags flags;
  flags.num_warmups = 10;
  flags.num_iterations = 30;
  DatasetOptions& dataset = flags.dataset;
  dataset.num_prompts = 8;
  dataset.random_input_len = 32;
  CLI::App app("Seconds for one batch from start to end.", "coppice bench latency");
  flags.session.add_to(app);
  app.add_option("--input-len", dataset.random_input_len, "tokens of a prompt")
      ->capture_default_str();
  app.add_option("--output-len", dataset.random_output_len, "tokens of an output")
      ->capture_default_str();
  app.add_option("--batch-size", dataset.num_prompts, "prompts at once")->capture_default_str();
  app.add_option("--num-iters-warmup", flags.num_warmups, "runs before the measured ones")
      ->capture_default_str();
  app.add_option("--num-iters", flags.num_iterations, "measured runs")
      ->check(CLI::Range(1, 100000));
  app.add_option("--output-json", flags.output_json, "write the results to this file");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  flags.session.finish();
  EngineConfig& engine = flags.session.engine;
  flags.session.sampling.ignore_eos = true;
  engine.enable_prefix_caching = false;
  engine.max_num_seqs = std::max(engine.max_num_seqs, dataset.num_prompts);
  const OutputFile output_json("--output-json", flags.output_json);
  TextSession session(flags.session);
  const std::vector<BenchPrompt> prompts = load_dataset(dataset, session.tokenizer());
  report_latency(measure(session, flags, encode_all(session, prompts), prompts).seconds,
                 output_json);
  return 0;
}

int run_bench_throughput(int argc, char** argv) {
  OfflineFlags flags;
  CLI::App app("Tokens per second with all requests given at once.", "coppice bench throughput");
  add_throughput_flags(app, flags);
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  flags.session.finish();
  flags.session.engine.enable_prefix_caching = !flags.no_prefix_caching;
  DatasetOptions& dataset = flags.dataset;
  set_lengths(dataset, flags.input_len, flags.output_len);
  dataset.seed = static_cast<std::uint64_t>(flags.session.sampling.seed.value_or(0));
  flags.session.sampling.ignore_eos = true;
  const OutputFile output_json("--output-json", flags.output_json);
  TextSession session(flags.session);
  const std::vector<BenchPrompt> prompts = load_dataset(dataset, session.tokenizer());
  const auto ids = encode_all(session, prompts);
  std::int64_t input = 0;
  for (const auto& prompt : ids) input += std::ssize(prompt);
  report_throughput(measure(session, flags, ids, prompts), std::ssize(prompts), input, output_json);
  return 0;
}

}  // namespace coppice
