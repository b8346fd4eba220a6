#include "planner/round_file.h"

#include <algorithm>
#include <numeric>

#include "io/json_field.h"
#include "model/config_fields.h"
#include "model/load_model.h"
#include "planner/device_file.h"
#include "planner/measured_field.h"

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

// What `coppice bench round` takes.
constexpr std::int64_t kMostRows = 1 << 16, kMostContext = 1 << 24, kMostRanks = 64,
                       kMostLayers = 128;

// Experts by the rows that they have (expert_loads, backend/cost/op_cost.h).
std::vector<double> read_loads(const JsonField& round, const char* key) {
  std::vector<double> loads;
  if (const auto array = round.find(key))
    for (const JsonField& experts : array->elements())
      loads.push_back(read_between(experts, 0, kMaxExperts));
  return loads;
}

// Times of a stage, one for each run; none where `runs` does not have it.
std::vector<double> read_runs(const std::optional<JsonField>& runs, const char* stage) {
  std::vector<double> us;
  if (const auto array = runs ? runs->find(stage) : std::nullopt)
    for (const JsonField& run : array->elements()) us.push_back(read_us_or_zero(run));
  return us;
}

void read_stages(const JsonField& field, MeasuredRound& round) {
  const auto spread = field.find("spread"), by_run = field.find("by_run");
  for (const StageName& stage : kStages) {
    const auto group = field.find(stage.group);
    if (const auto us = group ? group->find(stage.name) : std::nullopt)
      round.us[stage.part] = round.mean_us[stage.part] = read_us_or_zero(*us);
    if (const std::vector<double> runs = read_runs(by_run, stage.name); !runs.empty())
      round.mean_us[stage.part] =
          std::reduce(runs.begin(), runs.end()) / static_cast<double>(runs.size());
    const std::vector<double> ends = read_runs(spread, stage.name);
    if (ends.empty()) continue;
    if (ends.size() != 2) spread->at(stage.name).fail("holds no two times");
    round.spread[stage.part] = {ends[0], ends[1]};
  }
}

MeasuredRound read_round(const JsonField& field) {
  const auto us_or_zero = [&](const char* key) {
    const auto us = field.find(key);
    return us ? read_us_or_zero(*us) : 0;
  };
  const auto bytes = [&](const char* key) {
    const auto found = field.find(key);
    return found ? read_bytes(*found) : 0;
  };
  const std::int64_t batch = read_count(field.at("batch"), 1, kMostRows);
  const std::int64_t rows = read_count(field.at("rows"), batch, kMostRows);
  if (rows % batch != 0) field.at("rows").fail("is no multiple of the batch");
  const auto distinct = field.find("distinct_experts");
  const auto committed = field.find("committed_tokens");
  MeasuredRound round{
      .batch = batch,
      .rows = rows,
      .context = read_count(field.at("context"), 0, kMostContext),
      .drafting = field.get<bool>("drafting"),
      .distinct_experts = distinct ? read_between(*distinct, 0, kMaxExperts) : 0,
      .committed_tokens = committed ? read_between(*committed, 0, static_cast<double>(rows)) : 1,
      .expert_loads = read_loads(field, "expert_loads"),
      .expert_loads_alone = read_loads(field, "expert_loads_alone"),
      .us = {},
      .mean_us = {},
      .total_us = read_us(field.at("total_us")),
      .total_us_min = us_or_zero("total_us_min"),
      .total_us_max = us_or_zero("total_us_max"),
      .spread = {},
      .buffers_bytes = bytes("cache_and_buffers_bytes"),
      .workspace_bytes = bytes("workspace_bytes"),
      .graph_bytes = bytes("graph_bytes")};
  read_stages(field, round);
  return round;
}

ModelConfig read_target(const JsonField& model) {
  ModelConfig config = kimi_k2_config(read_size(model, "layers", kMostLayers),
                                      read_size(model, "n_routed_experts", kMaxExperts),
                                      read_size(model, "tp", kMostRanks));
  config.hidden_size = read_size(model, "hidden_size");
  config.num_attention_heads = config.num_key_value_heads =
      read_size(model, "num_heads", kMaxHeads);
  config.moe_intermediate_size = read_size(model, "moe_intermediate_size");
  config.num_experts_per_tok = read_size(model, "num_experts_per_tok",
                                         std::min(config.n_routed_experts, kMaxExpertsPerToken));
  config.vocab_size = read_size(model, "vocab_size");
  const auto width = [&](const char* key, std::int64_t& value) {
    value = read_size_or(model, key, value);
  };
  width("intermediate_size", config.intermediate_size);
  width("q_lora_rank", config.q_lora_rank);
  width("kv_lora_rank", config.kv_lora_rank);
  width("qk_nope_head_dim", config.qk_nope_head_dim);
  width("qk_rope_head_dim", config.qk_rope_head_dim);
  width("v_head_dim", config.v_head_dim);
  if (config.qk_rope_head_dim % 2 != 0) model.at("qk_rope_head_dim").fail("must be even");
  return config;
}

std::optional<DflashConfig> read_drafter(const JsonField& model, const ModelConfig& target) {
  const auto field = model.find("drafter");
  if (!field) return std::nullopt;
  DflashConfig drafter = kimi_k2_dflash_config(target);
  ModelConfig& network = drafter.network;
  network.num_hidden_layers = read_size(*field, "layers", kMostLayers);
  network.intermediate_size = read_size_or(
      *field, "intermediate_size", network.intermediate_size / model.get<std::int64_t>("tp"));
  network.head_dim = read_size_or(*field, "head_dim", network.head_dim);
  if (network.head_dim % 2 != 0) field->at("head_dim").fail("must be even");
  network.num_attention_heads = read_size(*field, "num_heads", kMaxHeads);
  network.num_key_value_heads = read_size(*field, "num_kv_heads", network.num_attention_heads);
  if (network.num_attention_heads % network.num_key_value_heads != 0)
    field->at("num_kv_heads").fail("must divide num_heads");
  drafter.block_size = read_size(*field, "block_size", kMaxDraftBlock);
  if (drafter.block_size < 2) field->at("block_size").fail("must be at least 2");
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
  return drafter ? read_size_or(*drafter, "fc_ranks", split, kMostRanks) : 1;
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
  for (const JsonField& round : root.at("rounds").elements()) {
    if (round.get<std::string>("mode", "graph") != "graph") continue;
    file.rounds.push_back(read_round(round));
    if (file.rounds.back().drafting && !file.drafter)
      round.at("drafting").fail("is true, but the model has no drafter");
  }
  if (file.rounds.empty()) root.at("rounds").fail("holds no captured round");
  const JsonField memory = root.at("memory");
  file.weights_bytes = read_bytes(memory.at("weights_bytes"));
  if (const auto drafter = memory.find("drafter_bytes")) file.drafter_bytes = read_bytes(*drafter);
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
