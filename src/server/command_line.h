// Command lines of vLLM and SGLang brought to one form before flags are parsed: pure text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

struct NormalizedArguments {
  std::vector<std::string> arguments;
  std::vector<std::string> warnings;  // one a flag that means nothing here
};

// Underscores in flag names become dashes, -tp and its like their long names, aliases of SGLang,
// llama.cpp and TensorRT-LLM vLLM's; "--x-config.key value" becomes one JSON object for --x-config;
// flags of those programs that mean nothing here go, each with a warning.
NormalizedArguments normalize_arguments(const std::vector<std::string>& arguments);

// What normalize_arguments knows besides a program's own flags, for its --help.
std::string other_spellings();

// The known flag that looks most like an unknown one; "" when none does.
std::string closest_flag(std::string_view unknown, const std::vector<std::string>& known);

// 4096, "4k" (4000), "4K" (4096), "1.5m", "2G": vLLM's human-readable integers. Throws
// Error(kInvalidArgument) naming the flag.
std::int64_t parse_human_integer(const std::string& text, const std::string& flag);

// A YAML file of flags as vLLM's --config has it: "key: value" lines, lists as "[a, b]" or "- a"
// lines, true and false ("--no-key") for switches, JSON objects in quotes or braces. Returns
// "--key", "value"
// ... Throws Error naming the file, the line and the cause.
std::vector<std::string> read_config_file(const std::string& path);

}  // namespace coppice
