#include "planner/round_file.h"

#include <algorithm>
#include <numeric>

#include "io/json_field.h"
#include "model/load_model.h"
#include "planner/device_file.h"

namespace coppice {
namespace {

constexpr const char* kRoundSchema = "coppice-bench-round-1";

struct StageName {
  const char *group, *name;
  Part part;
};
constexpr StageName kStages[] = {
    {"stages", "draft", Part::kDraft},         {"stages", "tree_build", Part::kTreeBuild},
    {"stages", "compile", Part::kTreeCompile}, {"stages", "commit", Part::kCommit},
    {"verify", "attention", Part::kAttention}, {"verify", "experts", Part::kExperts},
    {"verify", "dense", Part::kDense},         {"verify", "lm_head", Part::kLmHead},
    {"verify", "norms", Part::kNorms},         {"verify", "sampling", Part::kSample}};

std::vector<double> numbers(const JsonField& field, const char* key) {
  std::vector<double> values;
  if (const auto array = field.find(key))
    for (const JsonField& value : array->elements()) values.push_back(value.as<double>());
  return values;
}

MeasuredRound read_round(const JsonField& field) {
  MeasuredRound round{.batch = field.get<std::int64_t>("batch"),
                      .rows = field.get<std::int64_t>("rows"),
                      .context = field.get<std::int64_t>("context"),
                      .drafting = field.get<bool>("drafting"),
                      .distinct_experts = field.get<double>("distinct_experts", 0.0),
                      .committed_tokens = field.get<double>("committed_tokens", 1.0),
                      .expert_loads = numbers(field, "expert_loads"),
                      .expert_loads_alone = numbers(field, "expert_loads_alone"),
                      .us = {},
                      .mean_us = {},
                      .total_us = field.get<double>("total_us"),
                      .total_us_min = field.get<double>("total_us_min", 0.0),
                      .total_us_max = field.get<double>("total_us_max", 0.0),
                      .spread = {},
                      .buffers_bytes = field.get<double>("cache_and_buffers_bytes", 0.0),
                      .workspace_bytes = field.get<double>("workspace_bytes", 0.0),
                      .graph_bytes = field.get<double>("graph_bytes", 0.0)};
  const auto spread = field.find("spread"), by_run = field.find("by_run");
  for (const StageName& stage : kStages) {
    const auto group = field.find(stage.group);
    const auto us = group ? group->find(stage.name) : std::nullopt;
    if (us) round.us[stage.part] = round.mean_us[stage.part] = us->as<double>();
    const std::vector<double> runs = by_run ? numbers(*by_run, stage.name) : std::vector<double>();
    if (!runs.empty())
      round.mean_us[stage.part] =
          std::reduce(runs.begin(), runs.end()) / static_cast<double>(runs.size());
    const auto range = spread ? spread->find(stage.name) : std::nullopt;
    if (!range) continue;
    const std::vector<JsonField> ends = range->elements();
    round.spread[stage.part] = {ends.at(0).as<double>(), ends.at(1).as<double>()};
  }
  return round;
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
  const auto width = [&](const char* key, std::int64_t& value) {
    value = model.get<std::int64_t>(key, value);
  };
  width("intermediate_size", config.intermediate_size);
  width("q_lora_rank", config.q_lora_rank);
  width("kv_lora_rank", config.kv_lora_rank);
  width("qk_nope_head_dim", config.qk_nope_head_dim);
  width("qk_rope_head_dim", config.qk_rope_head_dim);
  width("v_head_dim", config.v_head_dim);
  return config;
}

std::optional<DflashConfig> read_drafter(const JsonField& model, const ModelConfig& target) {
  const auto field = model.find("drafter");
  if (!field) return std::nullopt;
  DflashConfig drafter = kimi_k2_dflash_config(target);
  ModelConfig& network = drafter.network;
  network.num_hidden_layers = field->get<std::int64_t>("layers");
  network.intermediate_size = field->get<std::int64_t>(
      "intermediate_size", network.intermediate_size / model.get<std::int64_t>("tp"));
  network.head_dim = field->get<std::int64_t>("head_dim", network.head_dim);
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

// Reports without `fc_ranks` that have `all_ranks` are of builds that split it, too.
std::int64_t read_fc_ranks(const JsonField& model) {
  const std::int64_t split = model.find("all_ranks") ? model.get<std::int64_t>("tp") : 1;
  const auto drafter = model.find("drafter");
  return drafter ? drafter->get<std::int64_t>("fc_ranks", split) : 1;
}

}  // namespace

RoundFile read_round_file(const std::string& path) {
  const Json document = read_json_file(path);
  const JsonField root(document, path);
  if (root.get<std::string>("schema") != kRoundSchema)
    root.at("schema").fail(std::string("is not ") + kRoundSchema + " (coppice bench round --json)");
  RoundFile file{.device = measured_device(root), .target = read_target(root.at("model"))};
  file.has_moe_block = root.at("model").get<bool>("moe_block", false);
  file.drafter = read_drafter(root.at("model"), file.target);
  file.fc_ranks = read_fc_ranks(root.at("model"));
  for (const JsonField& round : root.at("rounds").elements())
    if (round.get<std::string>("mode", "graph") == "graph")
      file.rounds.push_back(read_round(round));
  const JsonField memory = root.at("memory");
  file.weights_bytes = memory.get<double>("weights_bytes");
  file.drafter_bytes = memory.get<double>("drafter_bytes", 0.0);
  for (const JsonField& round : root.at("rounds").elements())
    file.runs = std::max(file.runs, round.get<std::int64_t>("runs", 1));
  file.commit = root.get<std::string>("commit", "");
  file.date = root.get<std::string>("date", "");
  return file;
}

NetworkOnPaper network_of(const RoundFile& file) {
  PaperOptions options;
  options.pads_rows = false;
  options.fuses_blocks = file.has_moe_block;
  options.fc_ranks = file.fc_ranks;
  options.prefill_rows = 1;
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
