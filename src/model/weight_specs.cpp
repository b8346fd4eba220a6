// The tensors of each kind of network under their published names.
#include <string>

#include "model/weight_loader.h"

namespace coppice {
namespace {

using Specs = std::vector<WeightSpec>;

void add_mlp(Specs& specs, const std::string& prefix, std::int64_t hidden_size,
             std::int64_t width) {
  specs.push_back({prefix + "gate_proj", width, hidden_size});
  specs.push_back({prefix + "up_proj", width, hidden_size});
  specs.push_back({prefix + "down_proj", hidden_size, width});
}

void add_mla(Specs& specs, const std::string& layer, const ModelConfig& c) {
  const std::string attention = layer + "self_attn.";
  const std::int64_t heads = c.num_attention_heads;
  specs.push_back({attention + "q_a_proj", c.q_lora_rank, c.hidden_size});
  specs.push_back({attention + "q_a_layernorm.weight", c.q_lora_rank});
  specs.push_back(
      {attention + "q_b_proj", heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.q_lora_rank});
  specs.push_back(
      {attention + "kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size});
  specs.push_back({attention + "kv_a_layernorm.weight", c.kv_lora_rank});
  specs.push_back(
      {attention + "kv_b_proj", heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank});
  specs.push_back({attention + "o_proj", c.hidden_size, heads * c.v_head_dim});
}

void add_experts(Specs& specs, const std::string& layer, const ModelConfig& c) {
  specs.push_back({layer + "mlp.gate", c.n_routed_experts, c.hidden_size});
  specs.push_back({layer + "mlp.gate.e_score_correction_bias", c.n_routed_experts});
  if (c.n_shared_experts > 0)
    add_mlp(specs, layer + "mlp.shared_experts.", c.hidden_size,
            c.n_shared_experts * c.moe_intermediate_size);
  for (std::int64_t expert = 0; expert < c.n_routed_experts; ++expert)
    add_mlp(specs, layer + "mlp.experts." + std::to_string(expert) + ".", c.hidden_size,
            c.moe_intermediate_size);
}

void add_gqa(Specs& specs, const std::string& layer, const ModelConfig& c) {
  const std::string attention = layer + "self_attn.";
  const std::int64_t q_width = c.num_attention_heads * c.head_dim;
  const std::int64_t kv_width = c.num_key_value_heads * c.head_dim;
  specs.push_back({attention + "q_proj", q_width, c.hidden_size});
  specs.push_back({attention + "k_proj", kv_width, c.hidden_size});
  specs.push_back({attention + "v_proj", kv_width, c.hidden_size});
  specs.push_back({attention + "o_proj", c.hidden_size, q_width});
  if (!c.qk_norm) return;
  specs.push_back({attention + "q_norm.weight", c.head_dim});
  specs.push_back({attention + "k_norm.weight", c.head_dim});
}

void add_layer(Specs& specs, const std::string& layer, const ModelConfig& c, bool is_routed) {
  specs.push_back({layer + "input_layernorm.weight", c.hidden_size});
  c.architecture == Architecture::kDeepseek ? add_mla(specs, layer, c) : add_gqa(specs, layer, c);
  specs.push_back({layer + "post_attention_layernorm.weight", c.hidden_size});
  is_routed ? add_experts(specs, layer, c)
            : add_mlp(specs, layer + "mlp.", c.hidden_size, c.intermediate_size);
}

}  // namespace

std::vector<WeightSpec> list_weights(const ModelConfig& config) {
  Specs specs;
  specs.push_back({"model.embed_tokens", config.vocab_size, config.hidden_size});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    add_layer(specs, "model.layers." + std::to_string(i) + ".", config,
              config.n_routed_experts > 0 && i >= config.first_k_dense_replace);
  specs.push_back({"model.norm.weight", config.hidden_size});
  if (!config.tie_word_embeddings)
    specs.push_back({"lm_head", config.vocab_size, config.hidden_size});
  return specs;
}

std::vector<WeightSpec> list_weights(const DflashConfig& config) {
  const ModelConfig& network = config.network;
  Specs specs;
  specs.push_back({"fc", network.hidden_size, config.feature_size()});
  specs.push_back({"hidden_norm.weight", network.hidden_size});
  for (std::int64_t i = 0; i < network.num_hidden_layers; ++i)
    add_layer(specs, "layers." + std::to_string(i) + ".", network, false);
  specs.push_back({"norm.weight", network.hidden_size});
  return specs;
}

}  // namespace coppice
