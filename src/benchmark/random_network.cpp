#include "benchmark/random_network.h"

#include <algorithm>
#include <cmath>

#include "base/random_values.h"
#include "model/deepseek_model.h"
#include "model/load_model.h"

namespace coppice {
namespace {

// Hands out weights from consecutive streams of random numbers.
class Maker {
 public:
  Maker(Backend& backend, DeviceMeter& meter, std::uint64_t seed)
      : backend_(backend), meter_(meter), seed_(seed) {}

  LinearWeight linear(std::int64_t rows, std::int64_t cols) {
    return meter_.random_linear(rows, cols, next(), std::sqrt(3.0f / static_cast<float>(cols)));
  }
  ExpertWeights experts(const ModelConfig& c) {
    return meter_.random_experts(c.n_routed_experts, c.hidden_size, c.moe_intermediate_size,
                                 next());
  }
  // `middle` plus noise: norm weights lie around 1, selection biases around 0.
  Tensor vector(std::int64_t size, float middle, float noise) {
    const std::uint64_t seed = next();
    std::vector<float> values;
    for (std::int64_t i = 0; i < size; ++i)
      values.push_back(middle + random_uniform(seed, static_cast<std::uint64_t>(i), noise));
    buffers_.push_back(backend_.allocate(values.size() * sizeof(float)));
    const Tensor tensor = buffers_.back().tensor(DType::kF32, {size});
    backend_.upload(tensor, values.data());
    backend_.synchronize();  // `values` goes
    return tensor;
  }
  Tensor norm(std::int64_t size) { return vector(size, 1, 0.1f); }
  Tensor table(std::int64_t rows, std::int64_t cols) {
    buffers_.push_back(
        backend_.allocate(static_cast<std::size_t>(rows * cols) * size_of(DType::kBF16)));
    const Tensor tensor = buffers_.back().tensor(DType::kBF16, {rows, cols});
    meter_.fill(tensor, next(), 1);
    return tensor;
  }
  MlpWeights mlp(std::int64_t hidden_size, std::int64_t width) {
    return {.gate_up = linear(2 * width, hidden_size), .down = linear(hidden_size, width)};
  }
  std::deque<Buffer> take_buffers() { return std::move(buffers_); }

 private:
  std::uint64_t next() { return seed_ += 16; }

  Backend& backend_;
  DeviceMeter& meter_;
  std::uint64_t seed_;
  std::deque<Buffer> buffers_;
};

DeepseekLayerWeights make_layer(Maker& maker, const ModelConfig& c, bool is_routed) {
  const std::int64_t h = c.num_attention_heads, nope = c.qk_nope_head_dim,
                     rope = c.qk_rope_head_dim;
  DeepseekLayerWeights layer;
  layer.input_layernorm = maker.norm(c.hidden_size);
  layer.qkv_a = maker.linear(c.q_lora_rank + c.kv_lora_rank + rope, c.hidden_size);
  layer.q_a_layernorm = maker.norm(c.q_lora_rank);
  layer.q_b = maker.linear(h * (nope + rope), c.q_lora_rank);
  layer.kv_a_layernorm = maker.norm(c.kv_lora_rank);
  layer.k_absorbed = maker.linear(h * c.kv_lora_rank, nope);
  layer.v_absorbed = maker.linear(h * c.v_head_dim, c.kv_lora_rank);
  layer.o_proj = maker.linear(c.hidden_size, h * c.v_head_dim);
  layer.post_attention_layernorm = maker.norm(c.hidden_size);
  layer.is_routed = is_routed;
  layer.mlp = maker.mlp(c.hidden_size, is_routed ? c.moe_intermediate_size : c.intermediate_size);
  if (!is_routed) return layer;
  layer.router = maker.linear(c.n_routed_experts, c.hidden_size);
  layer.e_score_correction_bias = maker.vector(c.n_routed_experts, 0, 0.05f);
  layer.experts = maker.experts(c);
  return layer;
}

LlamaLayerWeights make_gqa_layer(Maker& maker, const ModelConfig& c) {
  const std::int64_t q_width = c.num_attention_heads * c.head_dim;
  const std::int64_t kv_width = c.num_key_value_heads * c.head_dim;
  LlamaLayerWeights layer;
  layer.input_layernorm = maker.norm(c.hidden_size);
  layer.qkv = maker.linear(q_width + 2 * kv_width, c.hidden_size);
  layer.q_norm = maker.norm(c.head_dim);
  layer.k_norm = maker.norm(c.head_dim);
  layer.o_proj = maker.linear(c.hidden_size, q_width);
  layer.post_attention_layernorm = maker.norm(c.hidden_size);
  layer.mlp = maker.mlp(c.hidden_size, c.intermediate_size);
  return layer;
}

// The network of which a rank has these widths.
ModelConfig whole_of(const ModelConfig& rank, const ParallelConfig& parallel) {
  ModelConfig whole = rank;
  for (std::int64_t* width :
       {&whole.num_attention_heads, &whole.num_key_value_heads, &whole.intermediate_size,
        &whole.moe_intermediate_size, &whole.vocab_size})
    *width *= parallel.size;
  return whole;
}

}  // namespace

ModelConfig model_config_of(const NetworkShape& n, std::int64_t num_layers) {
  ModelConfig c = kimi_k2_config(num_layers, n.n_routed_experts);
  c.hidden_size = n.hidden_size;
  c.vocab_size = n.vocab_size;
  c.intermediate_size = n.intermediate_size;
  c.num_attention_heads = c.num_key_value_heads = n.num_heads;
  c.head_dim = n.nope_dim + n.rope_dim;
  c.q_lora_rank = n.q_lora_rank;
  c.kv_lora_rank = n.kv_lora_rank;
  c.qk_nope_head_dim = n.nope_dim;
  c.qk_rope_head_dim = n.rope_dim;
  c.v_head_dim = n.v_head_dim;
  c.num_experts_per_tok = n.num_experts_per_tok;
  c.moe_intermediate_size = n.moe_intermediate_size;
  return c;
}

DflashConfig drafter_config_of(const NetworkShape& n, std::int64_t num_ranks,
                               const ModelConfig& target) {
  const bool tiny = n.name == "tiny";
  DflashConfig drafter;
  ModelConfig& c = drafter.network;
  c.architecture = Architecture::kLlama;
  c.hidden_size = n.hidden_size;
  c.vocab_size = n.vocab_size;
  c.num_hidden_layers = tiny ? 2 : 6;
  c.num_attention_heads = tiny ? 8 : 64 / num_ranks;
  c.num_key_value_heads = tiny ? 2 : 8 / num_ranks;
  c.head_dim = tiny ? 64 : 128;
  c.intermediate_size = n.intermediate_size;
  c.max_position_embeddings = target.max_position_embeddings;
  c.rms_norm_eps = 1e-6;
  c.rope = {.theta = 50000};
  c.qk_norm = true;
  drafter.block_size = 8;
  drafter.mask_token_id = n.vocab_size - 2;
  drafter.num_target_layers = target.num_hidden_layers;
  // Six layers spread over the target, the first and the last but few left out.
  const std::int64_t count = std::min<std::int64_t>(6, target.num_hidden_layers);
  for (std::int64_t i = 0; i < count; ++i)
    drafter.target_layer_ids.push_back((2 * i + 1) * target.num_hidden_layers / (2 * count));
  drafter.layer_is_sliding.assign(static_cast<std::size_t>(c.num_hidden_layers), false);
  return drafter;
}

std::unique_ptr<Model> make_random_target(Backend& backend, DeviceMeter& meter,
                                          const ModelConfig& config, const ModelOptions& options) {
  Maker maker(backend, meter, 1);
  const ModelConfig whole = whole_of(config, options.parallel);
  DeepseekWeights weights;
  weights.embed_tokens = maker.table(whole.vocab_size, config.hidden_size);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    weights.layers.push_back(make_layer(maker, config, i >= config.first_k_dense_replace));
  weights.norm = maker.norm(config.hidden_size);
  weights.lm_head = maker.linear(config.vocab_size, config.hidden_size);
  weights.buffers = maker.take_buffers();
  return std::make_unique<DeepseekModel>(backend, whole, std::move(weights), options);
}

std::unique_ptr<DflashModel> make_random_drafter(Backend& backend, DeviceMeter& meter,
                                                 const DflashConfig& config, std::int64_t num_ranks,
                                                 Model& target, const ModelOptions& options) {
  constexpr std::uint64_t kSeed = 1 << 20;  // past the target's streams
  Maker maker(backend, meter, kSeed);
  const ModelConfig& c = config.network;
  DflashWeights weights;
  weights.fc = maker.linear(c.hidden_size, config.feature_size() / num_ranks);
  weights.hidden_norm = maker.norm(c.hidden_size);
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    weights.layers.push_back(make_gqa_layer(maker, c));
  weights.context_kv =
      maker.linear(c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim, c.hidden_size);
  weights.norm = maker.norm(c.hidden_size);
  weights.buffers = maker.take_buffers();
  target.set_feature_layers(config.target_layer_ids);
  DflashConfig whole = config;
  whole.network = whole_of(c, options.parallel);
  return make_dflash_model(backend, whole, std::move(weights), target, options);
}

}  // namespace coppice
