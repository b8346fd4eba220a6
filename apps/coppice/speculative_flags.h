// The flags that choose drafter and tree, for every verb that generates.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "engine/engine_config.h"

namespace coppice {

struct SpeculativeFlags {
  std::string config;  // vLLM's JSON
  std::string drafter;
  std::string method;
  std::string budget;
  std::int64_t num_tokens = 0;
  std::optional<std::int64_t> draft_window_size = {};
  std::optional<double> draft_attention_factor = {};

  void add_to(CLI::App& app);
  // Merges them, the single flags over the JSON. Throws Error naming the flag.
  void apply(EngineConfig& engine) const;
};

}  // namespace coppice
