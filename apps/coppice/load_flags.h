// The flags of `coppice bench serve` (vLLM's names) and one measured run with them; the sweep
// shares both.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/load_report.h"
#include "output_file.h"

namespace coppice {

// What prompts are made of: flags that every load takes, offline too.
void add_dataset_flags(CLI::App& app, DatasetOptions& dataset);

// --input-len and --output-len: of any data set; 0 leaves its own.
void set_lengths(DatasetOptions& dataset, std::int64_t input_len, std::int64_t output_len);

struct LoadFlags {
  std::string backend = "openai", base_url, host = "127.0.0.1", endpoint, model, tokenizer,
              served_name, label, extra_body, api_key;
  std::uint16_t port = 8000;
  DatasetOptions dataset;
  std::int64_t input_len = 0, output_len = 0;  // of set_lengths
  std::string request_rate = "inf";
  double burstiness = 1;
  std::int64_t max_concurrency = 0, num_warmups = 0;
  bool ignore_eos = false, disable_tqdm = false, skip_test = false;
  std::string percentile_metrics = "ttft,tpot,itl,e2el", metric_percentiles = "99";
  std::vector<std::string> goodput, metadata;
  bool save_result = false, save_detailed = false;
  std::string result_dir, result_filename;

  void add_to(CLI::App& app);
  // Throws Error naming the flag. "inf" is infinite.
  double rate() const;
};

// A server under measurement: its address, its model, the prompts.
class LoadTarget {
 public:
  // Asks the server for its model and reads the tokenizer. Throws Error when it does not answer.
  explicit LoadTarget(const LoadFlags& flags);

  // Sends all prompts once; prints vLLM's lines and table; returns its JSON.
  Json measure(double request_rate, std::int64_t max_concurrency);
  // Of --save-result. The directory is made.
  OutputFile result_file(double request_rate, std::int64_t max_concurrency) const;

  std::int64_t num_failed() const { return num_failed_; }

 private:
  void check_flags() const;
  void choose_model();
  LoadOptions load_options() const;
  void warm_up();
  void print_load(const ReportOptions& shown) const;
  Json result_json(const LoadReport& report, const ReportOptions& shown,
                   const std::vector<LoadResult>& results) const;
  ReportOptions report_options(double request_rate, std::int64_t max_concurrency) const;
  MetricsSnapshot metrics();

  const LoadFlags& flags_;
  HttpClient client_;
  std::string model_id_, tokenizer_id_, sent_name_;
  std::vector<BenchPrompt> prompts_;
  std::int64_t num_failed_ = 0;
};

}  // namespace coppice
