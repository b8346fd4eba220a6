#include "io/completeness.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

namespace coppice {
namespace {

// "a.layers.3.b.experts.7.c" as template "a.layers.#.b.experts.#.c" with layer 3 and expert 7.
struct ParsedName {
  std::string layers_prefix;  // up to and with "layers."
  std::string between;        // after the layer number, up to and with "experts." if there is one
  std::string rest;           // after the expert number; empty without one
  std::int64_t layer = 0;
  std::int64_t expert = -1;  // -1: no expert in the name
};

// The number that follows `key` in `text`; splits around it.
bool split_at_number(std::string_view text, std::string_view key, std::string& before,
                     std::int64_t& number, std::string& after) {
  for (std::size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    const std::string_view tail = text.substr(at + key.size());
    const auto result = std::from_chars(tail.data(), tail.data() + tail.size(), number);
    const auto digits = static_cast<std::size_t>(result.ptr - tail.data());
    if (result.ec != std::errc() || number < 0 || digits >= tail.size() || tail[digits] != '.')
      continue;
    before = text.substr(0, at + key.size());
    after = tail.substr(digits);
    return true;
  }
  return false;
}

std::optional<ParsedName> parse_name(const std::string& name) {
  ParsedName parsed;
  std::string tail;
  if (!split_at_number(name, "layers.", parsed.layers_prefix, parsed.layer, tail))
    return std::nullopt;
  if (!split_at_number(tail, ".experts.", parsed.between, parsed.expert, parsed.rest)) {
    parsed.between = tail;
    parsed.expert = -1;
  }
  return parsed;
}

std::string compose(const ParsedName& name, std::int64_t layer, std::int64_t expert) {
  std::string text = name.layers_prefix + std::to_string(layer) + name.between;
  if (expert >= 0) text += std::to_string(expert) + name.rest;
  return text;
}

struct Family {
  ParsedName example;
  std::int64_t first_layer = INT64_MAX;
  std::int64_t last_layer = -1;
  std::int64_t last_expert = -1;
};

}  // namespace

std::vector<std::string> missing_tensors(const Checkpoint& checkpoint, const JsonField& config,
                                         std::size_t limit) {
  const JsonField network = config.has("text_config") ? config.at("text_config") : config;
  const auto num_layers = network.get<std::int64_t>("num_hidden_layers", 0);
  auto num_experts = network.get<std::int64_t>("n_routed_experts", 0);
  num_experts = network.get<std::int64_t>("num_experts", num_experts);
  std::map<std::string, Family> families;
  for (const TensorInfo& info : checkpoint.tensors()) {
    const std::optional<ParsedName> name = parse_name(info.name);
    if (!name || name->layer >= num_layers ||
        name->expert >= std::max<std::int64_t>(num_experts, 1))
      continue;
    Family& family = families[compose(*name, 0, name->expert < 0 ? -1 : 0)];
    family.example = *name;
    family.first_layer = std::min(family.first_layer, name->layer);
    family.last_layer = std::max(family.last_layer, name->layer);
    family.last_expert = std::max(family.last_expert, name->expert);
  }
  // Leading dense layers end where the others begin.
  const auto dense = network.get<std::int64_t>("first_k_dense_replace", 0);
  std::vector<std::string> missing;
  for (const auto& [key, family] : families) {
    const bool is_mlp = family.example.between.starts_with(".mlp.");
    const std::int64_t begin = is_mlp && family.first_layer >= dense ? dense : 0;
    const std::int64_t end = is_mlp && family.last_layer < dense ? dense : num_layers;
    const std::int64_t experts = family.last_expert < 0 ? 1 : num_experts;
    for (std::int64_t layer = begin; layer < end; ++layer)
      for (std::int64_t expert = 0; expert < experts; ++expert) {
        const std::string name =
            compose(family.example, layer, family.last_expert < 0 ? -1 : expert);
        if (checkpoint.contains(name)) continue;
        missing.push_back(name);
        if (missing.size() == limit) return missing;
      }
  }
  return missing;
}

}  // namespace coppice
