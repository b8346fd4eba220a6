#include "model/weight_loader.h"

#include <numeric>

#include "model/weight_reader.h"

namespace coppice {
namespace {

// Checks all headers; returns the bytes that loading will count.
std::int64_t check_all(WeightSource& source, const std::vector<WeightSpec>& specs) {
  std::int64_t total = 0;
  for (const WeightSpec& spec : specs) total += static_cast<std::int64_t>(source.check(spec));
  source.check_unused();
  return total;
}

MlpWeights load_mlp(WeightReader& reader, const std::string& prefix, std::int64_t hidden_size,
                    std::int64_t width) {
  return {.gate_up = reader.linear({{prefix + "gate_proj", width, hidden_size},
                                    {prefix + "up_proj", width, hidden_size}},
                                   Split::kRows),
          .down = reader.linear({{prefix + "down_proj", hidden_size, width}}, Split::kCols)};
}

// ---- MLA

// Rows of q_b_proj are [nope | rope] head by head; the model wants the nope rows of all its heads,
// then the rope rows, so that both are plain column ranges of the product.
LinearWeight load_q_b(WeightReader& reader, const std::string& name, const ModelConfig& c) {
  const Shard heads = shard_of(reader.parallel(), c.num_attention_heads, 1, "num_attention_heads");
  const std::int64_t head_rows = c.qk_nope_head_dim + c.qk_rope_head_dim;
  std::vector<std::int64_t> order;
  for (const bool rope : {false, true})
    for (std::int64_t head = heads.begin; head < heads.begin + heads.count; ++head)
      for (std::int64_t i = rope ? c.qk_nope_head_dim : 0;
           i < (rope ? head_rows : c.qk_nope_head_dim); ++i)
        order.push_back(head * head_rows + i);
  const HostMatrix whole =
      reader.matrix({name, c.num_attention_heads * head_rows, c.q_lora_rank}, Split::kNone);
  return reader.linear({gather_rows(to_plain(whole, reader.storage()), order, reader.storage())});
}

// Splits kv_b_proj, rows [k_nope | v] head by head, into the two matrices of the absorbed form.
void load_kv_b(WeightReader& reader, const std::string& name, const ModelConfig& c,
               DeepseekLayerWeights& layer) {
  HostStorage& storage = reader.storage();
  const Shard heads = shard_of(reader.parallel(), c.num_attention_heads, 1, "num_attention_heads");
  const std::int64_t head_rows = c.qk_nope_head_dim + c.v_head_dim;
  const HostMatrix whole = to_plain(
      reader.matrix({name, c.num_attention_heads * head_rows, c.kv_lora_rank}, Split::kNone),
      storage);
  std::vector<HostMatrix> k_parts, v_parts;
  for (std::int64_t head = heads.begin; head < heads.begin + heads.count; ++head) {
    const HostMatrix k = slice_rows(whole, head * head_rows, c.qk_nope_head_dim);
    k_parts.push_back(transpose(k, storage));
    v_parts.push_back(slice_rows(whole, head * head_rows + c.qk_nope_head_dim, c.v_head_dim));
  }
  layer.k_absorbed = reader.linear(k_parts);
  layer.v_absorbed = reader.linear(v_parts);
}

void load_mla(WeightReader& reader, const std::string& prefix, const ModelConfig& c,
              DeepseekLayerWeights& layer) {
  layer.qkv_a = reader.linear(
      {{prefix + "q_a_proj", c.q_lora_rank, c.hidden_size},
       {prefix + "kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size}},
      Split::kNone);
  layer.q_a_layernorm = reader.vector({prefix + "q_a_layernorm.weight", c.q_lora_rank});
  layer.q_b = load_q_b(reader, prefix + "q_b_proj", c);
  layer.kv_a_layernorm = reader.vector({prefix + "kv_a_layernorm.weight", c.kv_lora_rank});
  load_kv_b(reader, prefix + "kv_b_proj", c, layer);
  layer.o_proj = reader.linear(
      {{prefix + "o_proj", c.hidden_size, c.num_attention_heads * c.v_head_dim}}, Split::kCols);
}

// ---- Experts

ExpertWeights load_experts(WeightReader& reader, const std::string& prefix, const ModelConfig& c) {
  if (const auto repacked = reader.repacked_experts(prefix))
    return reader.backend().load_repacked_experts(*repacked);
  return reader.backend().load_experts(expert_sources(
      prefix, c, [&](const WeightSpec& spec, Split split) { return reader.matrix(spec, split); }));
}

void load_routed(WeightReader& reader, const std::string& prefix, const ModelConfig& c,
                 DeepseekLayerWeights& layer) {
  layer.is_routed = true;
  layer.router =
      reader.linear({{prefix + "gate", c.n_routed_experts, c.hidden_size}}, Split::kNone);
  layer.e_score_correction_bias =
      reader.vector({prefix + "gate.e_score_correction_bias", c.n_routed_experts});
  if (c.n_shared_experts > 0)
    layer.mlp = load_mlp(reader, prefix + "shared_experts.", c.hidden_size,
                         c.n_shared_experts * c.moe_intermediate_size);
  layer.experts = load_experts(reader, prefix + "experts.", c);
}

// ---- Dense layers

LlamaLayerWeights load_gqa_layer(WeightReader& reader, const std::string& prefix,
                                 const ModelConfig& c) {
  const std::string attention = prefix + "self_attn.";
  const std::int64_t q_width = c.num_attention_heads * c.head_dim;
  const std::int64_t kv_width = c.num_key_value_heads * c.head_dim;
  LlamaLayerWeights layer;
  layer.input_layernorm = reader.vector({prefix + "input_layernorm.weight", c.hidden_size});
  layer.qkv = reader.linear({{attention + "q_proj", q_width, c.hidden_size},
                             {attention + "k_proj", kv_width, c.hidden_size},
                             {attention + "v_proj", kv_width, c.hidden_size}},
                            Split::kRows);
  if (c.qk_norm) {
    layer.q_norm = reader.vector({attention + "q_norm.weight", c.head_dim});
    layer.k_norm = reader.vector({attention + "k_norm.weight", c.head_dim});
  }
  layer.o_proj = reader.linear({{attention + "o_proj", c.hidden_size, q_width}}, Split::kCols);
  layer.post_attention_layernorm =
      reader.vector({prefix + "post_attention_layernorm.weight", c.hidden_size});
  layer.mlp = load_mlp(reader, prefix + "mlp.", c.hidden_size, c.intermediate_size);
  return layer;
}

// A tied head is the embedding matrix once more, in the layout of a projection.
LinearWeight load_lm_head(WeightReader& reader, const ModelConfig& c) {
  const char* name = c.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
  return reader.linear({{name, c.vocab_size, c.hidden_size}}, Split::kRows);
}

std::string layer_prefix(std::int64_t index) {
  return "model.layers." + std::to_string(index) + ".";
}

}  // namespace

std::vector<ExpertSource> expert_sources(
    const std::string& prefix, const ModelConfig& c,
    const std::function<HostMatrix(const WeightSpec& spec, Split split)>& matrix) {
  std::vector<ExpertSource> sources;
  const std::int64_t width = c.moe_intermediate_size;
  for (std::int64_t expert = 0; expert < c.n_routed_experts; ++expert) {
    const std::string name = prefix + std::to_string(expert) + ".";
    sources.push_back({.gate = matrix({name + "gate_proj", width, c.hidden_size}, Split::kRows),
                       .up = matrix({name + "up_proj", width, c.hidden_size}, Split::kRows),
                       .down = matrix({name + "down_proj", c.hidden_size, width}, Split::kCols)});
  }
  return sources;
}

std::string expert_prefix(std::int64_t layer) {
  return layer_prefix(layer) + "mlp.experts.";
}

DeepseekWeights load_deepseek_weights(Backend& backend, WeightSource& source,
                                      const ModelConfig& config, const ParallelConfig& parallel,
                                      const ProgressCallback& progress) {
  check_parallel(config, parallel);
  const std::int64_t total = check_all(source, list_weights(config));
  WeightReader reader(backend, source, parallel, progress, total);
  DeepseekWeights weights;
  weights.embed_tokens =
      reader.embedding({"model.embed_tokens", config.vocab_size, config.hidden_size});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string prefix = layer_prefix(i);
    DeepseekLayerWeights& layer = weights.layers.emplace_back();
    layer.input_layernorm = reader.vector({prefix + "input_layernorm.weight", config.hidden_size});
    load_mla(reader, prefix + "self_attn.", config, layer);
    layer.post_attention_layernorm =
        reader.vector({prefix + "post_attention_layernorm.weight", config.hidden_size});
    if (i < config.first_k_dense_replace)
      layer.mlp = load_mlp(reader, prefix + "mlp.", config.hidden_size, config.intermediate_size);
    else
      load_routed(reader, prefix + "mlp.", config, layer);
    reader.release();
  }
  weights.norm = reader.vector({"model.norm.weight", config.hidden_size});
  weights.lm_head = load_lm_head(reader, config);
  reader.release();
  weights.buffers = reader.take_buffers();
  return weights;
}

LlamaWeights load_llama_weights(Backend& backend, WeightSource& source, const ModelConfig& config,
                                const ParallelConfig& parallel, const ProgressCallback& progress) {
  check_parallel(config, parallel);
  const std::int64_t total = check_all(source, list_weights(config));
  WeightReader reader(backend, source, parallel, progress, total);
  LlamaWeights weights;
  weights.embed_tokens =
      reader.embedding({"model.embed_tokens", config.vocab_size, config.hidden_size});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    weights.layers.push_back(load_gqa_layer(reader, layer_prefix(i), config));
    reader.release();
  }
  weights.norm = reader.vector({"model.norm.weight", config.hidden_size});
  weights.lm_head = load_lm_head(reader, config);
  reader.release();
  weights.buffers = reader.take_buffers();
  return weights;
}

DflashWeights load_dflash_weights(Backend& backend, WeightSource& source,
                                  const DflashConfig& config, const ParallelConfig& parallel,
                                  const ProgressCallback& progress) {
  const ModelConfig& network = config.network;
  check_parallel(network, parallel);
  const std::int64_t total = check_all(source, list_weights(config));
  WeightReader reader(backend, source, parallel, progress, total);
  const std::int64_t kv_width = network.num_key_value_heads * network.head_dim;
  DflashWeights weights;
  weights.fc = reader.linear({{"fc", network.hidden_size, config.feature_size()}}, Split::kCols);
  weights.hidden_norm = reader.vector({"hidden_norm.weight", network.hidden_size});
  std::vector<HostMatrix> context_kv;
  for (std::int64_t i = 0; i < network.num_hidden_layers; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    weights.layers.push_back(load_gqa_layer(reader, prefix, network));
    for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"})
      context_kv.push_back(
          reader.matrix({prefix + name, kv_width, network.hidden_size}, Split::kRows));
  }
  weights.context_kv = reader.linear(context_kv);
  weights.norm = reader.vector({"norm.weight", network.hidden_size});
  reader.release();
  weights.buffers = reader.take_buffers();
  return weights;
}

}  // namespace coppice
