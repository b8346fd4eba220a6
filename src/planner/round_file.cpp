#include "planner/round_file.h"

#include <algorithm>

#include "io/json_field.h"
#include "model/load_model.h"
#include "planner/device_file.h"

namespace coppice {
namespace {

constexpr const char* kRoundSchema = "coppice-bench-round-1";

std::map<Part, double> read_parts(const JsonField& round) {
  std::map<Part, double> us;
  const auto add = [&](const char* group, const char* name, Part part) {
    const auto fields = round.find(group);
    if (!fields) return;
    if (const auto field = fields->find(name)) us[part] = field->as<double>();
  };
  add("stages", "draft", Part::kDraft);
  add("stages", "tree_build", Part::kTreeBuild);
  add("stages", "compile", Part::kTreeCompile);
  add("stages", "commit", Part::kCommit);
  add("verify", "attention", Part::kAttention);
  add("verify", "experts", Part::kExperts);
  add("verify", "dense", Part::kDense);
  add("verify", "lm_head", Part::kLmHead);
  add("verify", "norms", Part::kNorms);
  add("verify", "sampling", Part::kSample);
  return us;
}

MeasuredRound read_round(const JsonField& field) {
  return {.batch = field.get<std::int64_t>("batch"),
          .rows = field.get<std::int64_t>("rows"),
          .context = field.get<std::int64_t>("context"),
          .drafting = field.get<bool>("drafting"),
          .distinct_experts = field.get<double>("distinct_experts", 0.0),
          .us = read_parts(field),
          .total_us = field.get<double>("total_us")};
}

ModelConfig read_target(const JsonField& model) {
  ModelConfig config =
      kimi_k2_config(model.get<std::int64_t>("layers"), model.get<std::int64_t>("n_routed_experts"),
                     model.get<std::int64_t>("tp"));
  config.hidden_size = model.get<std::int64_t>("hidden_size");
  config.num_attention_heads = config.num_key_value_heads = model.get<std::int64_t>("num_heads");
  config.moe_intermediate_size = model.get<std::int64_t>("moe_intermediate_size");
  config.num_experts_per_tok = model.get<std::int64_t>("num_experts_per_tok");
  config.vocab_size = model.get<std::int64_t>("vocab_size");
  return config;
}

std::optional<DflashConfig> read_drafter(const JsonField& model, const ModelConfig& target) {
  const auto field = model.find("drafter");
  if (!field) return std::nullopt;
  DflashConfig drafter = kimi_k2_dflash_config(target);
  ModelConfig& network = drafter.network;
  network.num_hidden_layers = field->get<std::int64_t>("layers");
  network.intermediate_size /= model.get<std::int64_t>("tp");
  network.num_attention_heads = field->get<std::int64_t>("num_heads");
  network.num_key_value_heads = field->get<std::int64_t>("num_kv_heads");
  drafter.block_size = field->get<std::int64_t>("block_size");
  drafter.layer_is_sliding.assign(static_cast<std::size_t>(network.num_hidden_layers), false);
  // Features come from as many layers as published, spread over those that there are.
  const auto count = static_cast<std::int64_t>(drafter.target_layer_ids.size());
  const std::int64_t layers = target.num_hidden_layers;
  drafter.target_layer_ids.clear();
  for (std::int64_t i = 0; i < std::min(count, layers); ++i)
    drafter.target_layer_ids.push_back(i * layers / std::min(count, layers));
  drafter.num_target_layers = layers;
  return drafter;
}

}  // namespace

RoundFile read_round_file(const std::string& path) {
  const Json document = read_json_file(path);
  const JsonField root(document, path);
  if (root.get<std::string>("schema") != kRoundSchema)
    root.at("schema").fail(std::string("is not ") + kRoundSchema + " (coppice bench round --json)");
  RoundFile file{.device = measured_device(root), .target = read_target(root.at("model"))};
  file.drafter = read_drafter(root.at("model"), file.target);
  for (const JsonField& round : root.at("rounds").elements())
    if (round.get<std::string>("mode", "graph") == "graph")
      file.rounds.push_back(read_round(round));
  const JsonField memory = root.at("memory");
  file.weights_bytes = memory.get<double>("weights_bytes");
  file.drafter_bytes = memory.get<double>("drafter_bytes", 0.0);
  file.kv_bytes = memory.get<double>("kv_bytes", 0.0);
  file.total_bytes = memory.get<double>("total_bytes", 0.0);
  file.commit = root.get<std::string>("commit", "");
  file.date = root.get<std::string>("date", "");
  return file;
}

NetworkOnPaper network_of(const RoundFile& file) {
  PaperOptions options;
  options.max_batch = 1;
  options.max_budget = file.drafter ? 1 : 0;
  options.max_model_len = 1024;
  for (const MeasuredRound& round : file.rounds) {
    options.max_batch = std::max(options.max_batch, round.batch);
    if (round.drafting)
      options.max_budget = std::max(options.max_budget, round.rows / round.batch - 1);
    options.max_model_len = std::max(options.max_model_len, round.context + 1024);
  }
  return {file.target, file.drafter, options};
}

RoundTimes times_from_file(const std::string& path) {
  const Json document = read_json_file(path);
  if (JsonField(document, path).get<std::string>("schema") != kRoundSchema)
    return RoundTimes(KernelTimes::from_file(path));
  const RoundFile file = read_round_file(path);
  NetworkOnPaper network = network_of(file);
  RoundTimes times(KernelTimes::shipped());
  times.calibrate(file.rounds, network, file.target, file.device, path);
  return times;
}

}  // namespace coppice
