#include "server/command_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "io/json.h"

namespace coppice {
namespace {

using Alias = std::pair<std::string_view, std::string_view>;
constexpr std::array kAliases = {
    Alias{"-tp", "--tensor-parallel-size"},
    Alias{"--tp", "--tensor-parallel-size"},
    Alias{"--tp-size", "--tensor-parallel-size"},
    Alias{"-pp", "--pipeline-parallel-size"},
    Alias{"--pp", "--pipeline-parallel-size"},
    Alias{"--pp-size", "--pipeline-parallel-size"},
    Alias{"-dp", "--data-parallel-size"},
    Alias{"--dp", "--data-parallel-size"},
    Alias{"--dp-size", "--data-parallel-size"},
    Alias{"--ep", "--expert-parallel-size"},
    Alias{"--ep-size", "--expert-parallel-size"},
    Alias{"-m", "--model"},
    Alias{"--model-path", "--model"},
    Alias{"--alias", "--served-model-name"},
    Alias{"-c", "--max-model-len"},
    Alias{"--ctx-size", "--max-model-len"},
    Alias{"--context-length", "--max-model-len"},
    Alias{"--max-seq-len", "--max-model-len"},
    Alias{"--max-running-requests", "--max-num-seqs"},
    Alias{"--max-batch-size", "--max-num-seqs"},
    Alias{"-np", "--max-num-seqs"},
    Alias{"--parallel", "--max-num-seqs"},
    Alias{"--chunked-prefill-size", "--max-num-batched-tokens"},
    Alias{"--max-num-tokens", "--max-num-batched-tokens"},
    Alias{"--page-size", "--block-size"},
    Alias{"--mem-fraction-static", "--gpu-memory-utilization"},
    Alias{"--kv-cache-free-gpu-memory-fraction", "--gpu-memory-utilization"},
    Alias{"--speculative-algorithm", "--spec-method"},
    Alias{"--spec-type", "--spec-method"},
    Alias{"--speculative-draft-model-path", "--spec-model"},
    Alias{"--spec-draft-model", "--spec-model"},
    Alias{"--drafter", "--spec-model"},
    Alias{"--speculative-num-draft-tokens", "--spec-tokens"},
    Alias{"--num-speculative-tokens", "--spec-tokens"},
    Alias{"--spec-draft-n-max", "--spec-tokens"},
    Alias{"--speculative-ddtree-budget", "--ddtree-budget"},
    Alias{"--ddtree-size", "--ddtree-budget"},
    Alias{"--tree-budget", "--ddtree-budget"},
    Alias{"--speculative-dflash-draft-window-size", "--speculative-draft-window-size"},
    Alias{"--disable-cuda-graph", "--enforce-eager"},
    Alias{"--random-seed", "--seed"},
    Alias{"--uvicorn-log-level", "--log-level"},
    Alias{"--log-requests", "--enable-log-requests"},
    Alias{"--cors-origins", "--allowed-origins"},
    Alias{"-t", "--threads"},
    Alias{"-a", "--served-model-name"},
};

// Flags that have no meaning here, and whether a value follows.
struct Foreign {
  std::string_view name;
  bool has_value;
};
constexpr std::array kForeign = {
    Foreign{"--trust-remote-code", false},
    Foreign{"--mm-encoder-tp-mode", true},
    Foreign{"--mm-processor-cache-gb", true},
    Foreign{"--limit-mm-per-prompt", true},
    Foreign{"--disable-log-requests", false},
    Foreign{"--disable-uvicorn-access-log", false},
    Foreign{"--cuda-graph-bs", true},
    Foreign{"--cuda-graph-max-bs", true},
    Foreign{"--cudagraph-capture-sizes", true},
    Foreign{"--compilation-config", true},
    Foreign{"--attention-backend", true},
    Foreign{"--moe-runner-backend", true},
    Foreign{"--sampling-backend", true},
    Foreign{"--grammar-backend", true},
    Foreign{"--structured-outputs-config", true},
    Foreign{"--tokenizer-mode", true},
    Foreign{"--load-format", true},
    Foreign{"--download-dir", true},
    Foreign{"--enable-chunked-prefill", false},
    Foreign{"--no-enable-chunked-prefill", false},
    Foreign{"--async-scheduling", false},
    Foreign{"--no-async-scheduling", false},
    Foreign{"--enable-expert-parallel", false},
    Foreign{"--expert-parallel-size", true},
    Foreign{"--distributed-executor-backend", true},
    Foreign{"--disable-custom-all-reduce", false},
    Foreign{"--swap-space", true},
    Foreign{"--cpu-offload-gb", true},
    Foreign{"--max-logprobs", true},
    Foreign{"--scheduling-policy", true},
    Foreign{"--schedule-policy", true},
    Foreign{"--enable-prompt-tokens-details", false},
    Foreign{"--enable-cache-report", false},
    Foreign{"--enable-metrics", false},
    Foreign{"--metrics", false},
    Foreign{"--enable-tokenizer-info-endpoint", false},
    Foreign{"--enable-request-id-headers", false},
    Foreign{"--enable-server-load-tracking", false},
    Foreign{"--api-server-count", true},
    Foreign{"--tokenizer-worker-num", true},
    Foreign{"--watchdog-timeout", true},
    Foreign{"--speculative-num-steps", true},
    Foreign{"--speculative-eagle-topk", true},
    Foreign{"--speculative-dflash-block-size", true},
    Foreign{"--chat-template-content-format", true},
    Foreign{"--jinja", false},
    Foreign{"--hf-overrides", true},
    Foreign{"--data-parallel-size-local", true},
    Foreign{"--model-impl", true},
    Foreign{"--ipc", true},
};

bool is_flag(std::string_view text) {
  return text.size() > 1 && text[0] == '-' && !(text[1] >= '0' && text[1] <= '9') && text[1] != '.';
}

// "--a_b=c" -> {"--a-b", "c"}, aliases resolved.
struct Flag {
  std::string name;
  std::optional<std::string> value;
};

std::string without_alias(const std::string& name) {
  const auto alias = std::find_if(kAliases.begin(), kAliases.end(),
                                  [&](const Alias& known) { return known.first == name; });
  return alias == kAliases.end() ? name : std::string(alias->second);
}

const Foreign* find_foreign(const std::string& name) {
  const auto foreign = std::find_if(kForeign.begin(), kForeign.end(),
                                    [&](const Foreign& known) { return known.name == name; });
  return foreign == kForeign.end() ? nullptr : &*foreign;
}

Flag split_flag(const std::string& argument) {
  const std::size_t equals = argument.find('=');
  Flag flag{.name = argument.substr(0, equals), .value = {}};
  if (equals != std::string::npos) flag.value = argument.substr(equals + 1);
  std::replace(flag.name.begin(), flag.name.end(), '_', '-');
  flag.name = without_alias(flag.name);
  // The same of a switch that is switched off.
  if (flag.name.starts_with("--no-"))
    flag.name = "--no-" + without_alias("--" + flag.name.substr(5)).substr(2);
  return flag;
}

// A dotted key's value: JSON where it reads as JSON, else a string.
Json loose_value(const std::string& text) {
  try {
    return parse_json(text, "value");
  } catch (const Error&) {
    return text;
  }
}

// Objects given as "--x.key value", merged by flag.
class DottedFlags {
 public:
  void add(const std::string& name, const std::string& value) {
    const std::size_t dot = name.find('.');
    std::string key = name.substr(dot + 1);
    std::replace(key.begin(), key.end(), '-', '_');
    objects_[name.substr(0, dot)][key] = loose_value(value);
  }
  void append_to(std::vector<std::string>& arguments) const {
    for (const auto& [name, object] : objects_) {
      arguments.push_back(name);
      arguments.push_back(write_json(object));
    }
  }

 private:
  std::map<std::string, Json> objects_;
};

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

NormalizedArguments normalize_arguments(const std::vector<std::string>& arguments) {
  NormalizedArguments result;
  DottedFlags dotted;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_flag(arguments[i])) {
      result.arguments.push_back(arguments[i]);
      continue;
    }
    Flag flag = split_flag(arguments[i]);
    const bool next_is_value = i + 1 < arguments.size() && !is_flag(arguments[i + 1]);
    if (const Foreign* foreign = find_foreign(flag.name)) {
      result.warnings.push_back(flag.name + " has no effect here and is ignored");
      if (foreign->has_value && !flag.value && next_is_value) ++i;
    } else if (flag.name.starts_with("--no-") && find_foreign("--" + flag.name.substr(5))) {
      continue;  // what has no effect is off
    } else if (flag.name.find('.') != std::string::npos && (flag.value || next_is_value)) {
      dotted.add(flag.name, flag.value ? *flag.value : arguments[++i]);
    } else {
      result.arguments.push_back(flag.name);
      if (flag.value) result.arguments.push_back(*flag.value);
    }
  }
  dotted.append_to(result.arguments);
  return result;
}

std::string other_spellings() {
  std::map<std::string_view, std::string> names;
  for (const auto& [alias, flag] : kAliases) names[flag] += " " + std::string(alias);
  std::string text = "Also accepted:\n";
  for (const auto& [flag, aliases] : names) text += "  " + std::string(flag) + ":" + aliases + "\n";
  text += "\nWithout effect here, accepted with a warning:";
  std::size_t column = 100;
  for (const Foreign& foreign : kForeign) {
    if (column + 1 + foreign.name.size() > 100) {
      text += "\n   ";
      column = 3;
    }
    text += " " + std::string(foreign.name);
    column += 1 + foreign.name.size();
  }
  return text;
}

std::string closest_flag(std::string_view unknown, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(3, unknown.size() / 3);
  for (const std::string& flag : known) {
    const std::size_t distance = edit_distance(unknown, flag);
    if (distance >= best_distance) continue;
    best = flag;
    best_distance = distance;
  }
  return best;
}

std::int64_t parse_human_integer(const std::string& text, const std::string& flag) {
  const auto fail = [&] {
    throw Error(ErrorKind::kInvalidArgument,
                flag + ": '" + text + "' is not a count like 4096, 4k, 4K or 1.5m");
  };
  double value = 0;
  std::size_t used = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    fail();
  }
  static const std::map<std::string, double> kUnits = {{"", 1},
                                                       {"k", 1e3},
                                                       {"m", 1e6},
                                                       {"g", 1e9},
                                                       {"t", 1e12},
                                                       {"K", 1024},
                                                       {"M", 1024 * 1024},
                                                       {"G", 1024.0 * 1024 * 1024},
                                                       {"T", 1024.0 * 1024 * 1024 * 1024}};
  const auto unit = kUnits.find(text.substr(used));
  if (unit == kUnits.end()) fail();
  value *= unit->second;
  if (!(value >= 0 && value < 9e18) || std::floor(value) != value) fail();
  return static_cast<std::int64_t>(value);
}

}  // namespace coppice
