#include "model/model_config.h"

#include <algorithm>
#include <filesystem>

#include "io/mapped_file.h"
#include "io/quantization_config.h"
#include "model/config_fields.h"
#include "model/gguf_config.h"

namespace coppice {

std::int64_t read_size(const JsonField& config, const char* key, std::int64_t most) {
  const JsonField field = config.at(key);
  const auto value = field.as<std::int64_t>();
  if (value < 1 || value > most) field.fail("must be between 1 and " + std::to_string(most));
  return value;
}

std::int64_t read_size_or(const JsonField& config, const char* key, std::int64_t otherwise,
                          std::int64_t most) {
  return config.has(key) ? read_size(config, key, most) : otherwise;
}

void fail_unsupported(const JsonField& field, const std::string& cause) {
  const std::string where = field.path().empty() ? "" : ": field '" + field.path() + "'";
  throw Error(ErrorKind::kUnsupported, field.source() + where + ": " + cause);
}

namespace {

double read_norm_eps(const JsonField& config) {
  const JsonField field = config.at("rms_norm_eps");
  const double eps = field.as<double>();
  if (!(eps > 0) || eps > 0.1) field.fail("must be between 0 and 0.1");
  return eps;
}

// Widths, depth and vocabulary: what every network states.
void read_common(const JsonField& config, ModelConfig& model) {
  model.hidden_size = read_size(config, "hidden_size");
  model.num_hidden_layers = read_size(config, "num_hidden_layers", kMaxLayers);
  model.vocab_size = read_size(config, "vocab_size");
  model.intermediate_size = read_size(config, "intermediate_size");
  model.num_attention_heads = read_size(config, "num_attention_heads", kMaxHeads);
  model.num_key_value_heads =
      read_size_or(config, "num_key_value_heads", model.num_attention_heads, kMaxHeads);
  model.max_position_embeddings = read_size(config, "max_position_embeddings");
  model.rms_norm_eps = read_norm_eps(config);
  model.tie_word_embeddings = config.get<bool>("tie_word_embeddings", false);
  model.rope = read_rope(config, model.max_position_embeddings);
  require_equal(config, "hidden_act", std::string("silu"));
  require_equal(config, "attention_bias", false);
}

void read_mixture_of_experts(const JsonField& config, ModelConfig& model) {
  model.n_routed_experts = read_size(config, "n_routed_experts", kMaxExperts);
  model.num_experts_per_tok = read_size(config, "num_experts_per_tok",
                                        std::min(model.n_routed_experts, kMaxExpertsPerToken));
  model.n_shared_experts = config.get<std::int64_t>("n_shared_experts", 0);
  if (model.n_shared_experts < 0 || model.n_shared_experts > kMaxExperts)
    config.at("n_shared_experts").fail("must be between 0 and " + std::to_string(kMaxExperts));
  model.moe_intermediate_size = read_size(config, "moe_intermediate_size");
  model.first_k_dense_replace = config.get<std::int64_t>("first_k_dense_replace", 0);
  if (model.first_k_dense_replace < 0 || model.first_k_dense_replace > model.num_hidden_layers)
    config.at("first_k_dense_replace").fail("must be between 0 and num_hidden_layers");
  model.norm_topk_prob = config.get<bool>("norm_topk_prob", true);
  model.routed_scaling_factor = config.get<double>("routed_scaling_factor", 1);
  require_equal(config, "moe_layer_freq", std::int64_t{1});
  require_equal(config, "n_group", std::int64_t{1});
  require_equal(config, "topk_group", std::int64_t{1});
  require_equal(config, "scoring_func", std::string("sigmoid"));
  require_equal(config, "topk_method", std::string("noaux_tc"));
}

void read_deepseek(const JsonField& config, ModelConfig& model) {
  model.architecture = Architecture::kDeepseek;
  read_common(config, model);
  model.rope.interleaved = true;
  model.q_lora_rank = read_size(config, "q_lora_rank");
  model.kv_lora_rank = read_size(config, "kv_lora_rank");
  model.qk_nope_head_dim = read_size(config, "qk_nope_head_dim");
  model.qk_rope_head_dim = read_size(config, "qk_rope_head_dim");
  model.v_head_dim = read_size(config, "v_head_dim");
  model.head_dim = model.qk_nope_head_dim + model.qk_rope_head_dim;
  if (model.qk_rope_head_dim % 2 != 0) config.at("qk_rope_head_dim").fail("must be even");
  read_mixture_of_experts(config, model);
}

std::string architecture_name(const JsonField& config) {
  if (const auto names = config.find("architectures")) {
    const auto list = names->as<std::vector<std::string>>();
    if (list.empty()) names->fail("is empty");
    return list[0];
  }
  auto model_type = config.get<std::string>("model_type");
  if (model_type == "kimi_k25") return "KimiK25ForConditionalGeneration";
  if (model_type == "kimi_k2" || model_type == "deepseek_v3") return "DeepseekV3ForCausalLM";
  if (model_type == "qwen3") return "Qwen3ForCausalLM";
  if (model_type == "llama") return "LlamaForCausalLM";
  return model_type;
}

[[noreturn]] void fail_architecture(const JsonField& config, const std::string& name) {
  fail_unsupported(config, "architecture '" + printable(name) +
                               "' is not supported (KimiK25ForConditionalGeneration, "
                               "DeepseekV3ForCausalLM, Qwen3ForCausalLM and LlamaForCausalLM are)");
}

void read_network(const JsonField& config, ModelConfig& model) {
  const std::string name = architecture_name(config);
  if (name == "KimiK25ForConditionalGeneration") {
    const JsonField text = config.at("text_config");
    if (const std::string inner = architecture_name(text); inner != "DeepseekV3ForCausalLM")
      fail_architecture(text, inner);
    read_deepseek(text, model);
    model.tensor_prefix = "language_model.";
  } else if (name == "DeepseekV3ForCausalLM") {
    read_deepseek(config, model);
  } else if (name == "Qwen3ForCausalLM" || name == "LlamaForCausalLM") {
    model.qk_norm = name == "Qwen3ForCausalLM";
    read_gqa_network(config, model);
  } else {
    fail_architecture(config, name);
  }
}

// ---- Stop and start tokens

void add_stop_ids(const JsonField& config, ModelConfig& model) {
  const auto field = config.find("eos_token_id");
  if (!field) return;
  const auto ids = field->value().is_array() ? field->as<std::vector<std::int64_t>>()
                                             : std::vector{field->as<std::int64_t>()};
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= model.vocab_size)
      field->fail("token " + std::to_string(id) + " is outside the vocabulary of " +
                  std::to_string(model.vocab_size));
    if (std::ranges::find(model.eos_token_ids, id) == model.eos_token_ids.end())
      model.eos_token_ids.push_back(id);
    if (std::ssize(model.eos_token_ids) > kMaxEosTokenIds)
      field->fail("more than " + std::to_string(kMaxEosTokenIds) + " stop tokens");
  }
}

// Kimi ends a turn with any of three tokens, of which the configs name one and not always the one
// that the model uses.
void add_kimi_stop_ids(const std::filesystem::path& folder, ModelConfig& model) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return;
  const Json document = read_json_file(path);
  const JsonField root(document, printable(path.string()));
  const auto tokens = root.find("added_tokens_decoder");
  if (!tokens) return;
  for (const auto& [id, token] : tokens->members()) {
    const std::string content = token.get<std::string>("content", "");
    if (content != "[EOS]" && content != "<|im_end|>" && content != "[EOT]") continue;
    const Json stop = Json::object({{"eos_token_id", std::int64_t{std::atoll(id.c_str())}}});
    add_stop_ids(JsonField(stop, root.source()), model);
  }
}

void read_token_ids(const std::filesystem::path& folder, const JsonField& config,
                    ModelConfig& model) {
  const std::filesystem::path generation_path = folder / "generation_config.json";
  if (std::filesystem::exists(generation_path)) {
    const Json document = read_json_file(generation_path);
    add_stop_ids(JsonField(document, printable(generation_path.string())), model);
  }
  add_stop_ids(config, model);
  const auto text = config.find("text_config");
  if (text) add_stop_ids(*text, model);
  if (model.architecture == Architecture::kDeepseek) add_kimi_stop_ids(folder, model);
  model.bos_token_id = (text ? *text : config).get<std::int64_t>("bos_token_id", -1);
}

ModelConfig load_json_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const Json document = read_json_file(path);
  const JsonField config(document, printable(path.string()));
  ModelConfig model;
  read_network(config, model);
  read_token_ids(folder, config, model);
  read_quantization_config(folder);
  return model;
}

}  // namespace

void read_gqa_network(const JsonField& config, ModelConfig& model) {
  model.architecture = Architecture::kLlama;
  read_common(config, model);
  constexpr std::int64_t kQwen3HeadDim = 128;
  model.head_dim =
      read_size_or(config, "head_dim",
                   model.qk_norm ? kQwen3HeadDim : model.hidden_size / model.num_attention_heads);
  if (model.head_dim % 2 != 0) config.at("head_dim").fail("must be even");
  if (model.num_attention_heads % model.num_key_value_heads != 0)
    config.at("num_key_value_heads").fail("must divide num_attention_heads");
  model.rope.interleaved = config.get<bool>("rope_interleaved", false);
  require_equal(config, "mlp_bias", false);
}

ModelConfig load_model_config(const std::string& path) {
  const std::filesystem::path folder(path);
  if (const auto gguf = find_gguf(folder)) return load_gguf_config(*gguf);
  return load_json_config(folder);
}

}  // namespace coppice
