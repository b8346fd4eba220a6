#include "serve_flags.h"

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "io/json_field.h"
#include "io/model_path.h"
#include "parse_flags.h"
#include "serve_settings.h"
#include "server/command_line.h"
#include "server/stats_log.h"

namespace coppice {
namespace {

std::vector<std::string> read_origins(const std::string& text) {
  if (!text.starts_with("[")) return {text};
  const Json list =
      parse_json(text, "--allowed-origins", {.error_kind = ErrorKind::kInvalidArgument});
  return JsonField(list, "--allowed-origins", ErrorKind::kInvalidArgument)
      .as<std::vector<std::string>>();
}

LogLevel parse_log_level(const std::string& name) {
  if (name == "debug" || name == "trace") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning" || name == "warn") return LogLevel::kWarning;
  if (name == "error" || name == "critical") return LogLevel::kError;
  throw Error(ErrorKind::kInvalidArgument,
              "--log-level " + name + ": must be debug, info, warning or error");
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

void ServeFlags::add_engine_flags(CLI::App& app) {
  EngineConfig& engine = server.engine;
  app.add_option("model,--model", engine.model, "model folder, GGUF file or hub id")->required();
  speculative.add_to(app);
  app.add_option("--device", engine.device, "auto, cpu, cpu-reference, cuda or cuda:N");
  app.add_option("--threads", engine.num_threads, "CPU threads; 0: all that may be used");
  app.add_option("--seed", engine.seed, "of requests that bring none");
  app.add_option("--max-model-len", max_model_len, "prompt and output tokens, 4k or auto");
  app.add_option("--max-num-seqs", engine.max_num_seqs, "sequences that run at once");
  app.add_option("--max-num-batched-tokens", max_batched_tokens, "rows of a prefill step");
  app.add_option("--kv-cache-memory-bytes,--kv-cache-memory", kv_cache_memory, "size of the cache");
  app.add_option("--num-gpu-blocks-override", engine.num_kv_blocks, "cache blocks of 64 tokens");
  app.add_option("--gpu-memory-utilization", gpu_memory_utilization,
                 "accepted; the cache is sized by --kv-cache-memory-bytes")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--kv-cache-dtype", kv_cache_dtype, "auto or bfloat16");
  app.add_option("--block-size", block_size, "64");
  app.add_option("--dtype", dtype, "auto or bfloat16");
  app.add_option("--quantization", quantization, "accepted; the files say it");
  app.add_option("--tensor-parallel-size", engine.tensor_parallel_size,
                 "GPUs, or parts of the CPU threads, that share the model");
  app.add_option("--pipeline-parallel-size", pipeline_parallel_size, "1");
  app.add_option("--data-parallel-size", data_parallel_size, "1");
  app.add_flag("--enforce-eager", engine.enforce_eager, "GPU: no captured rounds, to compare");
  app.add_flag("--enable-prefix-caching", engine.enable_prefix_caching, "on by default");
  app.add_flag("--no-enable-prefix-caching,--disable-radix-cache", no_prefix_caching,
               "compute every prompt whole");
  app.add_flag("--prefix-cache-exact", engine.prefix_cache_exact,
               "share only blocks that prefill computed: bit-exact output");
}

void ServeFlags::add_api_flags(CLI::App& app) {
  ServedModelOptions& model = server.model;
  app.add_option("--served-model-name", model.names, "names that requests may use");
  app.add_option("--host", host, "address; default: loopback, or all with an API key");
  app.add_option("--port", server.http.port, "default 8000");
  app.add_option("--api-key", api_keys, "keys that open all routes but health");
  app.add_option("--allowed-origins", allowed_origins, "CORS: JSON list; default [\"*\"]");
  app.add_option("--io-threads", server.http.num_io_threads, "threads of HTTP")
      ->check(CLI::Range(1, 64));
  app.add_option("--chat-template", model.chat_template, "file or text");
  app.add_flag("--trust-request-chat-template", model.trust_request_chat_template,
               "requests may bring a template");
  app.add_option("--default-chat-template-kwargs", model.default_chat_template_kwargs, "JSON");
  app.add_option("--tool-call-parser", model.tool_call_parser,
                 "auto: by the tokenizer and the template; none, " + tool_format_names());
  app.add_option("--reasoning-parser", model.reasoning_parser, "auto, none, kimi_k2, qwen3");
  app.add_flag("--enable-auto-tool-choice", enable_auto_tool_choice, "always on");
  app.add_option("--generation-config", model.generation_config, "auto, or vllm for none");
  app.add_option("--override-generation-config", model.override_generation_config, "JSON");
  app.add_option("--max-queued-requests", server.loop.max_queued_requests,
                 "more get 429 with Retry-After")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30));
  app.add_option("--shutdown-timeout", shutdown_timeout_s, "seconds to drain after SIGTERM")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--stuck-after", stuck_after_s, "seconds of one step until /health says stuck")
      ->check(CLI::Range(0.0, 1e6));
  app.add_flag("--enable-timings", server.timings, "llama.cpp's timings in answers");
  app.add_flag("--no-reasoning-content", drop_reasoning_content,
               "answer with `reasoning` only, not `reasoning_content` too");
  app.add_flag("--enable-log-requests", enable_log_requests, "one line each");
  app.add_flag("--disable-log-stats", disable_log_stats, "no line of figures every 10 seconds");
  app.add_option("--log-level", log_level, "debug, info, warning, error");
  app.add_option("--log-format", log_format, "text or json");
  app.add_flag("--quiet", quiet, "no progress on stderr");
  app.add_option("--config", config, "YAML file of flags; the environment and given flags beat it");
}

void ServeFlags::add_to(CLI::App& app) {
  app.name("coppice serve");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_engine_flags(app);
  add_api_flags(app);
  for (const char* list : {"--served-model-name", "--api-key"})
    app.get_option(list)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  read_environment(app);
  app.footer(other_spellings());
}

std::optional<int> ServeFlags::parse(int argc, char** argv) {
  CLI::App app("Answers HTTP requests in the manner of OpenAI, vLLM and SGLang.");
  add_to(app);
  NormalizedArguments given = normalize_arguments({argv + 1, argv + argc});
  drop_idle_negations(app, given.arguments);
  add_config_file(app, given);
  try {
    app.parse(std::vector<std::string>(given.arguments.rbegin(), given.arguments.rend()));
    refuse_bad_values(app);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    refuse(app, error, given.arguments);
  }
  use_server_log_format(log_format == "json");
  set_log_level(parse_log_level(log_level));
  for (const std::string& warning : given.warnings) log_warning(warning);
  warn_of_unknown_variables(app);
  finish();
  return std::nullopt;
}

void ServeFlags::check_numbers() const {
  const auto one_only = [](const char* flag, std::int64_t value) {
    if (value > 1)
      log_warning(std::string(flag) + " " + std::to_string(value) +
                  ": this build runs one copy of the model; -tp N splits it over GPUs");
  };
  one_only("--pipeline-parallel-size", pipeline_parallel_size);
  one_only("--data-parallel-size", data_parallel_size);
  if (block_size != 64) log_warning("--block-size: cache blocks hold 64 tokens");
  for (const char* known : {"auto", "bfloat16", "float16", "half", "float32", "float"})
    if (dtype == known) return check_cache_dtype();
  throw Error(ErrorKind::kInvalidArgument, "--dtype " + dtype + ": must be auto or bfloat16");
}

void ServeFlags::check_cache_dtype() const {
  if (kv_cache_dtype != "auto" && !kv_cache_dtype.starts_with("bf"))
    throw Error(ErrorKind::kUnsupported,
                "--kv-cache-dtype " + kv_cache_dtype +
                    ": the cache is kept in bf16; a smaller type would change the output");
}

void ServeFlags::finish() {
  check_numbers();
  EngineConfig& engine = server.engine;
  server.model.model = engine.model;
  speculative.apply(engine);
  engine.model = resolve_model(engine.model).string();
  if (!max_model_len.empty() && max_model_len != "auto" && max_model_len != "-1")
    engine.max_model_len = parse_human_integer(max_model_len, "--max-model-len");
  if (!kv_cache_memory.empty())
    engine.kv_cache_bytes = parse_human_integer(kv_cache_memory, "--kv-cache-memory-bytes");
  if (!max_batched_tokens.empty())
    engine.max_num_batched_tokens =
        parse_human_integer(max_batched_tokens, "--max-num-batched-tokens");
  engine.enable_prefix_caching = !no_prefix_caching;
  engine.capture_at_start = true;
  server.log_requests = enable_log_requests;
  server.reasoning_content = !drop_reasoning_content;
  server.loop.stuck_after = std::chrono::milliseconds(static_cast<int>(stuck_after_s * 1000));
  // An unset variable in a start script, say: nobody who asks for a key wants none.
  if (std::find(api_keys.begin(), api_keys.end(), "") != api_keys.end())
    throw Error(ErrorKind::kInvalidArgument, "--api-key is empty: must be at least one character");
  if (const char* key = std::getenv("VLLM_API_KEY"); key != nullptr && api_keys.empty())
    api_keys = {key};
  std::erase(api_keys, "");
  if (std::find(server.model.names.begin(), server.model.names.end(), "") !=
      server.model.names.end())
    throw Error(ErrorKind::kInvalidArgument, "--served-model-name is empty");
  server.router.api_keys = api_keys;
  if (!allowed_origins.empty()) server.router.allowed_origins = read_origins(allowed_origins);
  server.http.host = !host.empty() ? host : api_keys.empty() ? "127.0.0.1" : "0.0.0.0";
  server.router.check_loopback_host = is_loopback(server.http.host) && api_keys.empty();
  server.version = COPPICE_VERSION;
  server.flags = Json::object({{"max_num_seqs", engine.max_num_seqs},
                               {"enable_prefix_caching", engine.enable_prefix_caching},
                               {"speculative_model", engine.speculative_model},
                               {"device", engine.device}});
}

}  // namespace coppice
