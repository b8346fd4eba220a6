#include "load_flags.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <sstream>

#include "engine/model_text.h"
#include "io/json_field.h"
#include "io/model_path.h"

namespace coppice {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

std::string now_as(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[64];
  std::strftime(text, sizeof text, format, &local);
  return text;
}

std::vector<std::pair<std::string, std::string>> credentials(const LoadFlags& flags) {
  std::string key = flags.api_key;
  for (const char* name : {"OPENAI_API_KEY", "VLLM_API_KEY"})
    if (const char* value = std::getenv(name); key.empty() && value != nullptr) key = value;
  if (key.empty()) return {};
  return {{"Authorization", "Bearer " + key}};
}

Url address(const LoadFlags& flags) {
  if (!flags.base_url.empty()) return parse_url(flags.base_url, "--base-url");
  return Url{.host = flags.host, .port = flags.port, .prefix = ""};
}

std::string shortest(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

void add_dataset_flags(CLI::App& app, DatasetOptions& dataset) {
  app.add_option("--dataset-name", dataset.name, "random, sharegpt, custom");
  app.add_option("--dataset-path", dataset.path, "file of sharegpt or custom");
  app.add_option("--num-prompts", dataset.num_prompts, "how many; those of a file begin again")
      ->capture_default_str();
  app.add_option("--random-input-len", dataset.random_input_len, "tokens of a prompt");
  app.add_option("--random-output-len", dataset.random_output_len, "tokens of an output");
  app.add_option("--random-range-ratio", dataset.random_range_ratio,
                 "lengths differ by up to this share");
}

void set_lengths(DatasetOptions& dataset, std::int64_t input_len, std::int64_t output_len) {
  if (input_len > 0) dataset.random_input_len = input_len;
  if (output_len > 0)
    dataset.random_output_len = dataset.sharegpt_output_len = dataset.custom_output_len =
        output_len;
}

void LoadFlags::add_to(CLI::App& app) {
  app.add_option("--backend", backend, "openai (completions), openai-chat; vllm is openai")
      ->check(CLI::IsMember({"openai", "openai-chat", "vllm"}));
  app.add_option("--base-url", base_url, "http://HOST:PORT; beats --host and --port");
  app.add_option("--host", host, "of the server");
  app.add_option("--port", port, "of the server");
  app.add_option("--endpoint", endpoint, "default: by the backend");
  app.add_option("--model", model, "default: the first that the server lists");
  app.add_option("--served-model-name", served_name, "name that requests carry");
  app.add_option("--tokenizer", tokenizer, "folder; default: the model's");
  app.add_option("--api-key", api_key, "also OPENAI_API_KEY, VLLM_API_KEY");
  add_dataset_flags(app, dataset);
  app.add_option("--seed", dataset.seed, "of prompts and arrivals");
  app.add_option("--input-len", input_len, "of any data set that can");
  app.add_option("--output-len", output_len, "of any data set");
  app.add_option("--random-prefix-len", dataset.random_prefix_len,
                 "tokens that all prompts begin with");
  app.add_option("--sharegpt-output-len", dataset.sharegpt_output_len, "instead of the file's");
  app.add_option("--custom-output-len", dataset.custom_output_len, "-1: the file's");
  app.add_flag("--disable-shuffle", dataset.disable_shuffle, "in the file's order");
  app.add_option("--request-rate", request_rate, "requests/s or inf");
  app.add_option("--burstiness", burstiness, "1: Poisson; lower: bunched");
  app.add_option("--max-concurrency", max_concurrency, "0: no limit");
  app.add_option("--num-warmups", num_warmups, "requests before the measured ones");
  app.add_flag("--ready-check-disabled,--skip-initial-test", skip_test, "no request to test with");
  app.add_flag("--ignore-eos", ignore_eos, "outputs of full length");
  app.add_option("--extra-body", extra_body, "JSON object whose fields go into every request");
  app.add_flag("--disable-tqdm", disable_tqdm, "no progress");
  app.add_option("--percentile-metrics", percentile_metrics, "of ttft, tpot, itl, e2el");
  app.add_option("--metric-percentiles", metric_percentiles, "such as 50,99");
  app.add_option("--goodput", goodput, "limits in ms: ttft:500 tpot:50 e2el:2000");
  app.add_flag("--save-result", save_result, "write a JSON file");
  app.add_flag("--save-detailed", save_detailed, "with every request's times and text");
  app.add_option("--result-dir", result_dir, "where");
  app.add_option("--result-filename", result_filename, "instead of one by label, rate and date");
  app.add_option("--label", label, "begins the file's name");
  app.add_option("--metadata", metadata, "KEY=VALUE pairs for the result");
}

double LoadFlags::rate() const {
  char* end = nullptr;
  const double value = std::strtod(request_rate.c_str(), &end);
  if (*end != '\0' || !(value > 0))
    throw Error(ErrorKind::kInvalidArgument, "--request-rate " + request_rate + ": above 0 or inf");
  return value;
}

LoadTarget::LoadTarget(const LoadFlags& flags)
    : flags_(flags), client_(address(flags), credentials(flags)) {
  check_flags();
  choose_model();
  DatasetOptions dataset = flags.dataset;
  set_lengths(dataset, flags.input_len, flags.output_len);
  const auto tokenizer = load_tokenizer(resolve_model(tokenizer_id_).string());
  prompts_ = load_dataset(dataset, tokenizer);
  if (!flags.skip_test) warm_up();
}

// What is wrong with them shows before the server is asked for anything.
void LoadTarget::check_flags() const {
  load_options();
  report_options(0, 0);
  for (const std::string& pair : flags_.metadata)
    if (pair.find('=') == std::string::npos)
      throw Error(ErrorKind::kInvalidArgument, "--metadata " + pair + ": must be KEY=VALUE");
}

void LoadTarget::choose_model() {
  const HttpReply reply = client_.fetch({.path = "/v1/models"});
  if (!reply.ok())
    throw Error(ErrorKind::kUnavailable,
                "GET /v1/models: " +
                    (reply.error.empty() ? "HTTP " + std::to_string(reply.status) : reply.error));
  const Json models = parse_json(reply.body, "/v1/models");
  const JsonField data = JsonField(models, "/v1/models").at("data");
  const std::vector<JsonField> listing = data.elements();
  if (listing.empty()) data.fail("the server has no model");
  const JsonField& first = listing.front();
  const std::string listed = first.get<std::string>("id");
  model_id_ = flags_.model.empty() ? listed : flags_.model;
  sent_name_ = !flags_.served_name.empty() ? flags_.served_name : model_id_;
  tokenizer_id_ = !flags_.tokenizer.empty() ? flags_.tokenizer
                  : !flags_.model.empty()   ? flags_.model
                                            : first.get<std::string>("root", listed);
}

LoadOptions LoadTarget::load_options() const {
  LoadOptions options{.chat = flags_.backend == "openai-chat",
                      .endpoint = flags_.endpoint,
                      .model = sent_name_,
                      .burstiness = flags_.burstiness,
                      .seed = flags_.dataset.seed,
                      .ignore_eos = flags_.ignore_eos};
  if (flags_.extra_body.empty()) return options;
  options.extra_body =
      parse_json(flags_.extra_body, "--extra-body", {.error_kind = ErrorKind::kInvalidArgument});
  JsonField(options.extra_body, "--extra-body", ErrorKind::kInvalidArgument).members();
  return options;
}

void LoadTarget::warm_up() {
  double seconds = 0;
  std::printf("Starting initial single prompt test run...\n");
  std::vector<BenchPrompt> some(prompts_.begin(), prompts_.begin() + 1);
  const LoadResult first = run_load(client_, some, load_options(), seconds)[0];
  if (!first.success)
    throw Error(ErrorKind::kUnavailable,
                "Initial test run failed - Please make sure benchmark arguments are correctly "
                "specified. Error: " +
                    first.error);
  std::printf("Initial test run completed.\n");
  if (flags_.num_warmups <= 0) return;
  std::printf("Warming up with %lld requests...\n", static_cast<long long>(flags_.num_warmups));
  some.clear();
  for (std::int64_t i = 0; i < flags_.num_warmups; ++i)
    some.push_back(prompts_[static_cast<std::size_t>(i) % prompts_.size()]);
  LoadOptions options = load_options();
  options.max_concurrency = flags_.max_concurrency;
  run_load(client_, some, options, seconds);
}

ReportOptions LoadTarget::report_options(double request_rate, std::int64_t max_concurrency) const {
  ReportOptions options{.metrics = parse_metrics(flags_.percentile_metrics),
                        .percentiles = {},
                        .goodput = parse_goodput(flags_.goodput),
                        .request_rate = request_rate,
                        .max_concurrency = max_concurrency};
  for (const std::string& percent : split(flags_.metric_percentiles)) {
    char* end = nullptr;
    options.percentiles.push_back(std::strtod(percent.c_str(), &end));
    if (*end != '\0' || options.percentiles.back() < 0 || options.percentiles.back() > 100)
      throw Error(ErrorKind::kInvalidArgument, "--metric-percentiles " + percent + ": 0 to 100");
  }
  return options;
}

MetricsSnapshot LoadTarget::metrics() {
  return MetricsSnapshot(client_.fetch({.path = "/metrics"}).body);
}

Json LoadTarget::measure(double request_rate, std::int64_t max_concurrency) {
  LoadOptions options = load_options();
  options.request_rate = request_rate;
  options.max_concurrency = max_concurrency;
  const ReportOptions shown = report_options(request_rate, max_concurrency);
  print_load(shown);
  const MetricsSnapshot before = metrics();
  double duration_s = 0;
  const std::vector<LoadResult> results =
      run_load(client_, prompts_, options, duration_s, [&](std::int64_t done) {
        if (!flags_.disable_tqdm)
          std::fprintf(stderr, "\r%lld/%zu", static_cast<long long>(done), prompts_.size());
      });
  if (!flags_.disable_tqdm) std::fprintf(stderr, "\n");
  LoadReport report = summarize(results, duration_s, shown);
  const MetricsSnapshot after = metrics();
  report.drafts = draft_stats(before, after);
  report.prefix_cache_hit_rate = prefix_hit_rate(before, after);
  num_failed_ += report.failed;
  const auto failed = std::ranges::find(results, false, &LoadResult::success);
  if (failed != results.end()) std::fprintf(stderr, "first failure: %s\n", failed->error.c_str());
  if (report.completed > 0)
    std::fputs(report_text(report, shown).c_str(), stdout);
  else
    std::fprintf(stderr, "all %zu requests failed: there is nothing to report\n", results.size());
  std::fflush(stdout);
  return result_json(report, shown, results);
}

void LoadTarget::print_load(const ReportOptions& shown) const {
  std::printf("Starting main benchmark run...\nTraffic request rate: %s\n",
              shortest(shown.request_rate).c_str());
  std::printf("Burstiness factor: %g (%s)\n", flags_.burstiness,
              flags_.burstiness == 1 ? "Poisson process" : "Gamma distribution");
  std::printf("Maximum request concurrency: %s\n",
              shown.max_concurrency > 0 ? std::to_string(shown.max_concurrency).c_str() : "None");
  std::fflush(stdout);
}

Json LoadTarget::result_json(const LoadReport& report, const ReportOptions& shown,
                             const std::vector<LoadResult>& results) const {
  Json json = Json::object({{"date", now_as("%Y%m%d-%H%M%S")},
                            {"endpoint_type", flags_.backend},
                            {"backend", flags_.backend},
                            {"label", flags_.label.empty() ? Json() : Json(flags_.label)},
                            {"model_id", model_id_},
                            {"tokenizer_id", tokenizer_id_},
                            {"num_prompts", static_cast<std::int64_t>(prompts_.size())}});
  for (const std::string& pair : flags_.metadata) {
    const std::size_t equals = pair.find('=');
    json[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  json["request_rate"] = std::isinf(shown.request_rate) ? Json("inf") : Json(shown.request_rate);
  json["burstiness"] = flags_.burstiness;
  json["max_concurrency"] = shown.max_concurrency > 0 ? Json(shown.max_concurrency) : Json();
  const auto add_all = [&](const Json& more) {
    for (const auto& [key, value] : more.as_object()) json[key] = value;
  };
  add_all(report_json(report, shown));
  if (flags_.save_detailed) add_all(detail_json(results));
  return json;
}

OutputFile LoadTarget::result_file(double request_rate, std::int64_t max_concurrency) const {
  std::string name = flags_.result_filename;
  if (name.empty()) {
    const std::string base = std::filesystem::path(model_id_).filename().string();
    name = (flags_.label.empty() ? flags_.backend : flags_.label) + "-" + shortest(request_rate) +
           "qps" + (max_concurrency > 0 ? "-concurrency" + std::to_string(max_concurrency) : "") +
           "-" + base + "-" + now_as("%Y%m%d-%H%M%S") + ".json";
  }
  std::filesystem::path path = name;
  if (!flags_.result_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(flags_.result_dir, error);
    path = std::filesystem::path(flags_.result_dir) / name;
  }
  return {"--save-result", path.string()};
}

}  // namespace coppice
