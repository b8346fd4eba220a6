// The flags of coppice serve: vLLM's names, other programs' through server/command_line.h.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "server/server.h"
#include "speculative_flags.h"

namespace coppice {

struct ServeFlags {
  ServerOptions server;
  SpeculativeFlags speculative;
  std::string config;  // read before flags are parsed
  std::string host;    // none: all addresses with a key, else loopback
  std::vector<std::string> api_keys;
  std::string allowed_origins;
  std::string max_model_len, kv_cache_memory, max_batched_tokens;
  std::string kv_cache_dtype = "auto", dtype = "auto", quantization, log_level = "info",
              log_format = "text";
  std::int64_t block_size = 64;
  std::int64_t pipeline_parallel_size = 1, data_parallel_size = 1;
  double gpu_memory_utilization = 0;
  bool enable_auto_tool_choice = false, enable_log_requests = false, disable_log_stats = false;
  bool no_prefix_caching = false, drop_reasoning_content = false, quiet = false;
  double shutdown_timeout_s = 60;
  double stuck_after_s = 5;

  // Parses a command line (argv[0] is the verb), the --config file and the environment. Returns an
  // exit code when there is nothing to serve (--help); throws Error naming the flag.
  std::optional<int> parse(int argc, char** argv);

 private:
  void add_to(CLI::App& app);
  void add_engine_flags(CLI::App& app);
  void add_api_flags(CLI::App& app);
  void finish();
  void check_cache_dtype() const;
  void check_numbers() const;
};

}  // namespace coppice
