// coppice bench latency | throughput: the engine without a server, printed as vLLM does.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "client/datasets.h"
#include "client/load_report.h"
#include "parse_flags.h"
#include "text_session.h"
#include "verbs.h"

namespace coppice {
namespace {

using SteadyTime = std::chrono::steady_clock;

double seconds_since(SteadyTime::time_point start) {
  return std::chrono::duration<double>(SteadyTime::now() - start).count();
}

void write_result(const std::string& path, const Json& json) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::binary);
  file << write_json(json, {.indent = 4}) << "\n";
  if (!file.flush())
    throw Error(ErrorKind::kUnavailable, "--output-json " + path + ": cannot be written");
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

}  // namespace

int run_bench_latency(int argc, char** argv) {
  SessionFlags flags;
  DatasetOptions dataset{.num_prompts = 8, .random_input_len = 32};
  std::int64_t num_warmups = 10, num_iterations = 30;
  std::string output_json;
  CLI::App app("Seconds for one batch from start to end.", "coppice bench latency");
  flags.add_to(app);
  app.add_option("--input-len", dataset.random_input_len, "tokens of a prompt")
      ->capture_default_str();
  app.add_option("--output-len", dataset.random_output_len, "tokens of an output")
      ->capture_default_str();
  app.add_option("--batch-size", dataset.num_prompts, "prompts at once")->capture_default_str();
  app.add_option("--num-iters-warmup", num_warmups, "runs before the measured ones")
      ->capture_default_str();
  app.add_option("--num-iters", num_iterations, "measured runs")->check(CLI::Range(1, 100000));
  app.add_option("--output-json", output_json, "write the results to this file");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  flags.finish();
  flags.sampling.ignore_eos = true;
  flags.engine.enable_prefix_caching = false;
  flags.engine.max_num_seqs = std::max(flags.engine.max_num_seqs, dataset.num_prompts);
  TextSession session(flags);
  const std::vector<BenchPrompt> prompts = load_dataset(dataset, session.tokenizer());
  const auto ids = encode_all(session, prompts);
  std::vector<double> seconds;
  for (std::int64_t i = -num_warmups; i < num_iterations; ++i) {
    const auto start = SteadyTime::now();
    run_all(session, ids, prompts, flags.sampling);
    if (i >= 0) seconds.push_back(seconds_since(start));
  }
  double total = 0;
  for (const double value : seconds) total += value;
  const double mean = total / static_cast<double>(seconds.size());
  std::printf("Avg latency: %.17g seconds\n", mean);
  Json percentiles = Json::object(), all = Json::array();
  for (const int percent : {10, 25, 50, 75, 90, 99}) {
    const double value = percentile(seconds, percent);
    std::printf("%d%% percentile latency: %.17g seconds\n", percent, value);
    percentiles[std::to_string(percent)] = value;
  }
  for (const double value : seconds) all.push_back(value);
  write_result(output_json, Json::object({{"avg_latency", mean},
                                          {"latencies", std::move(all)},
                                          {"percentiles", std::move(percentiles)}}));
  return 0;
}

int run_bench_throughput(int argc, char** argv) {
  SessionFlags flags;
  DatasetOptions dataset;
  std::int64_t input_len = 0, output_len = 0, num_warmups = 0, num_iterations = 1;
  bool no_prefix_caching = false;
  std::string output_json;
  CLI::App app("Tokens per second with all requests given at once.", "coppice bench throughput");
  flags.add_to(app);
  app.add_option("--max-num-seqs", flags.engine.max_num_seqs, "sequences that run at once");
  app.add_option("--dataset-name", dataset.name, "random, sharegpt, custom");
  app.add_option("--dataset-path", dataset.path, "file of sharegpt or custom");
  app.add_option("--num-prompts", dataset.num_prompts, "how many; those of a file begin again")
      ->capture_default_str();
  app.add_option("--input-len", input_len, "tokens of a prompt");
  app.add_option("--output-len", output_len, "tokens of an output");
  app.add_option("--random-input-len", dataset.random_input_len, "tokens of a prompt");
  app.add_option("--random-output-len", dataset.random_output_len, "tokens of an output");
  app.add_option("--random-range-ratio", dataset.random_range_ratio,
                 "lengths differ by up to this share");
  app.add_option("--num-warmups", num_warmups, "runs before the measured ones");
  app.add_option("--num-iters", num_iterations, "measured runs; the median is printed")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--no-enable-prefix-caching", no_prefix_caching, "compute every prompt whole");
  app.add_option("--output-json", output_json, "write the results to this file");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  flags.finish();
  flags.engine.enable_prefix_caching = !no_prefix_caching;
  if (input_len > 0) dataset.random_input_len = input_len;
  if (output_len > 0)
    dataset.random_output_len = dataset.sharegpt_output_len = dataset.custom_output_len =
        output_len;
  dataset.seed = static_cast<std::uint64_t>(flags.sampling.seed.value_or(0));
  flags.sampling.ignore_eos = true;
  TextSession session(flags);
  const std::vector<BenchPrompt> prompts = load_dataset(dataset, session.tokenizer());
  const auto ids = encode_all(session, prompts);
  std::int64_t output = 0;
  std::vector<double> all;
  for (std::int64_t i = -num_warmups; i < num_iterations; ++i) {
    const auto start = SteadyTime::now();
    output = run_all(session, ids, prompts, flags.sampling);
    if (i >= 0) all.push_back(seconds_since(start));
  }
  const double seconds = percentile(all, 50);
  std::int64_t input = 0;
  for (const auto& prompt : ids) input += std::ssize(prompt);
  const auto rate = [&](std::int64_t count) { return static_cast<double>(count) / seconds; };
  std::printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n",
              rate(std::ssize(prompts)), rate(input + output), rate(output));
  std::printf("Total num prompt tokens:  %lld\nTotal num output tokens:  %lld\n",
              static_cast<long long>(input), static_cast<long long>(output));
  Json all_seconds = Json::array();
  for (const double value : all) all_seconds.push_back(value);
  write_result(output_json,
               Json::object({{"elapsed_time", seconds},
                             {"elapsed_times", std::move(all_seconds)},
                             {"output_tokens_per_second", rate(output)},
                             {"num_requests", static_cast<std::int64_t>(prompts.size())},
                             {"total_num_tokens", input + output},
                             {"requests_per_second", rate(std::ssize(prompts))},
                             {"tokens_per_second", rate(input + output)}}));
  return 0;
}

}  // namespace coppice
