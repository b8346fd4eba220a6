// Both published forms of a drafter's config.json: z-lab (fields at the top and in dflash_config)
// and speculators (transformer_layer_config, layer ids counted from the embedding).
#include <algorithm>
#include <filesystem>

#include "io/mapped_file.h"
#include "model/config_fields.h"

namespace coppice {
namespace {

// The field in `inner` (dflash_config) or at the top; both must agree.
std::optional<JsonField> find_either(const JsonField& config, const std::optional<JsonField>& inner,
                                     const char* key) {
  const auto top = config.find(key);
  const auto nested = inner ? inner->find(key) : std::nullopt;
  if (top && nested && top->value() != nested->value())
    nested->fail("disagrees with the field at the top");
  return nested ? nested : top;
}

void read_block(const JsonField& config, const std::optional<JsonField>& inner,
                DflashConfig& drafter, std::optional<std::int64_t> default_block_size) {
  const auto block_size = find_either(config, inner, "block_size");
  if (!block_size && !default_block_size) config.at("block_size");
  drafter.block_size = block_size ? block_size->as<std::int64_t>() : *default_block_size;
  if (drafter.block_size < 2 || drafter.block_size > kMaxDraftBlock)
    block_size->fail("must be between 2 and " + std::to_string(kMaxDraftBlock));

  const auto mask = find_either(config, inner, "mask_token_id");
  if (!mask) (inner ? *inner : config).at("mask_token_id");
  drafter.mask_token_id = mask->as<std::int64_t>();
  if (drafter.mask_token_id < 0 || drafter.mask_token_id >= drafter.network.vocab_size)
    mask->fail("is outside the vocabulary of " + std::to_string(drafter.network.vocab_size));
  if (const auto layers = find_either(config, inner, "num_target_layers"))
    drafter.num_target_layers = layers->as<std::int64_t>();
}

// `shift`: what to subtract from the ids in the file to get 0-based layers.
void read_target_layers(const JsonField& field, std::int64_t shift, DflashConfig& drafter) {
  for (const auto id : field.as<std::vector<std::int64_t>>()) {
    const std::int64_t layer = id - shift;
    if (layer < 0) field.fail("names the embedding output, which is no layer");
    const bool beyond = drafter.num_target_layers > 0 && layer >= drafter.num_target_layers;
    if (beyond || layer >= kMaxLayers)
      field.fail("names layer " + std::to_string(layer) + " of " +
                 std::to_string(drafter.num_target_layers));
    if (!drafter.target_layer_ids.empty() && layer <= drafter.target_layer_ids.back())
      field.fail("must be ascending without repeats");
    drafter.target_layer_ids.push_back(layer);
  }
  if (drafter.target_layer_ids.empty()) field.fail("is empty");
}

// Which layers see only a window, and whether those are causal inside the block. Without a word in
// the file, sliding layers were trained causal (the speculators default, and Qwen3.6-27B-DFlash).
void read_windows(const JsonField& network, const std::optional<JsonField>& inner,
                  DflashConfig& drafter) {
  const auto num_layers = static_cast<std::size_t>(drafter.network.num_hidden_layers);
  drafter.layer_is_sliding.assign(num_layers, false);
  if (const auto types = network.find("layer_types")) {
    const auto names = types->as<std::vector<std::string>>();
    if (names.size() != num_layers)
      types->fail("has " + std::to_string(names.size()) + " entries for " +
                  std::to_string(num_layers) + " layers");
    for (std::size_t i = 0; i < num_layers; ++i) {
      if (names[i] != "full_attention" && names[i] != "sliding_attention")
        fail_unsupported(*types, "'" + printable(names[i]) + "' is not supported");
      drafter.layer_is_sliding[i] = names[i] == "sliding_attention";
    }
  }
  const bool all_sliding = inner && inner->get<bool>("use_swa", false);
  if (all_sliding) drafter.layer_is_sliding.assign(num_layers, true);
  if (std::ranges::find(drafter.layer_is_sliding, true) == drafter.layer_is_sliding.end()) return;
  drafter.sliding_window = all_sliding && inner->has("swa_window_size")
                               ? read_size(*inner, "swa_window_size")
                               : read_size(network, "sliding_window");
  drafter.causal_sliding_layers = true;
}

void read_causality(const JsonField& config, const std::optional<JsonField>& inner,
                    DflashConfig& drafter) {
  if (inner) require_equal(*inner, "causal_head", false);
  const bool has_sliding = drafter.sliding_window > 0;
  if (const auto causal = find_either(config, inner, "causal")) {
    if (causal->as<bool>() && !has_sliding)
      fail_unsupported(*causal, "a causal block with full attention is not supported");
    drafter.causal_sliding_layers = has_sliding && causal->as<bool>();
  }
  if (const auto non_causal = config.find("sliding_window_non_causal"))
    drafter.causal_sliding_layers = has_sliding && !non_causal->as<bool>();
}

void refuse_variants(const JsonField& config, const std::optional<JsonField>& inner,
                     const DflashConfig& drafter) {
  for (const auto& field : {std::optional(config), inner}) {
    if (!field) continue;
    require_equal(*field, "sample_from_anchor", false);
    require_equal(*field, "target_hidden_size", drafter.network.hidden_size);
    if (const auto cap = field->find("final_logit_softcapping"))
      fail_unsupported(*cap, "logit soft-capping is not supported");
  }
}

DflashConfig read_z_lab(const JsonField& config) {
  DflashConfig drafter;
  drafter.network.qk_norm = true;
  read_gqa_network(config, drafter.network);
  const auto inner = config.find("dflash_config");
  read_block(config, inner, drafter, std::nullopt);
  const auto layers = find_either(config, inner, "target_layer_ids");
  // Guessing the layers when the field is missing fits few checkpoints.
  if (!layers) (inner ? *inner : config).at("target_layer_ids");
  read_target_layers(*layers, 0, drafter);
  read_windows(config, inner, drafter);
  read_causality(config, inner, drafter);
  refuse_variants(config, inner, drafter);
  return drafter;
}

// transformer_layer_config leaves out fields that have transformers' Qwen3 default.
Json with_qwen3_defaults(const JsonField& layers) {
  Json network = layers.value();
  const Json defaults = Json::object({{"hidden_size", 4096},
                                      {"intermediate_size", 22016},
                                      {"num_hidden_layers", 32},
                                      {"num_attention_heads", 32},
                                      {"num_key_value_heads", 32},
                                      {"head_dim", 128},
                                      {"vocab_size", 151936},
                                      {"max_position_embeddings", 32768},
                                      {"rms_norm_eps", 1e-6}});
  for (const auto& [key, value] : defaults.as_object())
    if (network.find(key) == nullptr) network[key] = value;
  return network;
}

DflashConfig read_speculators(const JsonField& config) {
  const JsonField layers = config.at("transformer_layer_config");
  layers.members();
  const Json completed = with_qwen3_defaults(layers);
  const JsonField network(completed, config.source() + ": transformer_layer_config");
  DflashConfig drafter;
  drafter.network.qk_norm = true;
  read_gqa_network(network, drafter.network);
  read_block(config, std::nullopt, drafter, 8);
  read_target_layers(config.at("aux_hidden_state_layer_ids"), 1, drafter);
  constexpr std::int64_t kDefaultDraftVocab = 32000;
  const std::int64_t draft_vocab = config.get<std::int64_t>("draft_vocab_size", kDefaultDraftVocab);
  if (draft_vocab != drafter.network.vocab_size)
    fail_unsupported(config, "draft_vocab_size " + std::to_string(draft_vocab) +
                                 " differs from vocab_size " +
                                 std::to_string(drafter.network.vocab_size) +
                                 ": reduced draft vocabularies are not supported");
  read_windows(network, std::nullopt, drafter);
  read_causality(config, std::nullopt, drafter);
  refuse_variants(config, std::nullopt, drafter);
  return drafter;
}

}  // namespace

DflashConfig load_dflash_config(const std::string& dir) {
  const std::filesystem::path path = std::filesystem::path(dir) / "config.json";
  const Json document = read_json_file(path);
  const JsonField config(document, printable(path.string()));
  if (const auto type = config.find("speculators_model_type")) {
    if (type->as<std::string>() != "dflash")
      fail_unsupported(
          *type, "'" + printable(type->as<std::string>()) + "' is not supported, only dflash");
    return read_speculators(config);
  }
  const auto names = config.get<std::vector<std::string>>("architectures");
  if (names.empty() || names[0] != "DFlashDraftModel")
    fail_unsupported(config.at("architectures"), "is not a DFlash drafter (DFlashDraftModel)");
  return read_z_lab(config);
}

}  // namespace coppice
