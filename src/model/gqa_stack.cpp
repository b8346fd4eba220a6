#include "model/gqa_stack.h"

namespace coppice {

GqaStack::GqaStack(Backend& backend, const ModelConfig& config, const ModelOptions& options)
    : backend_(backend),
      config_(config),
      num_ranks_(options.parallel.size),
      num_heads_(config.num_attention_heads / num_ranks_),
      num_kv_heads_(config.num_key_value_heads / num_ranks_),
      eps_(static_cast<float>(config.rms_norm_eps)),
      max_rows_(options.max_rows),
      rope_(backend, config.rope, config.head_dim, num_positions(config, options)),
      arena_(Buffer()) {
  const DType act = backend.activation_dtype();
  const std::int64_t width = config.intermediate_size / num_ranks_;
  arena_ = allocate_activations(backend, max_rows_,
                                {{&residual_, act, config.hidden_size},
                                 {&x_, act, config.hidden_size},
                                 {&delta_, act, config.hidden_size},
                                 {&qkv_, act, (num_heads_ + 2 * num_kv_heads_) * config.head_dim},
                                 {&o_, act, num_heads_ * config.head_dim},
                                 {&gate_up_, act, 2 * width},
                                 {&mlp_act_, act, width}});
}

KvLayout GqaStack::kv_layout() const {
  return {.num_layers = config_.num_hidden_layers,
          .planes_per_layer = 2,
          .row_size = num_kv_heads_ * config_.head_dim};
}

void GqaStack::norm(const Tensor& weight, std::int64_t num_rows) {
  backend_.rms_norm({.x = residual(num_rows), .weight = weight, .eps = eps_, .out = x(num_rows)});
}

void GqaStack::layer(const LlamaLayerWeights& weights, const Tensor& next_norm,
                     const ForwardBatch& batch, const Tensor& k_cache, const Tensor& v_cache,
                     const AttentionWindow& window) {
  const std::int64_t T = batch.num_rows();
  attention(weights, batch, k_cache, v_cache, window);
  add_and_norm(weights.post_attention_layernorm, T);
  mlp(weights.mlp, T, batch.attention.provenance);
  add_and_norm(next_norm, T);
}

void GqaStack::attention(const LlamaLayerWeights& weights, const ForwardBatch& batch,
                         const Tensor& k_cache, const Tensor& v_cache,
                         const AttentionWindow& window) {
  const std::int64_t T = batch.num_rows(), D = config_.head_dim;
  const std::int64_t q_width = num_heads_ * D, kv_width = num_kv_heads_ * D;
  const Provenance provenance = batch.attention.provenance;

  const Tensor qkv = qkv_.rows(0, T);  // [T, q_width + 2 * kv_width]
  backend_.linear({.x = x(T), .weight = &weights.qkv, .out = qkv, .provenance = provenance});
  const Tensor q = qkv.columns(0, q_width).reshape({T, num_heads_, D});
  const Tensor k = qkv.columns(q_width, kv_width).reshape({T, num_kv_heads_, D});
  const Tensor v = qkv.columns(q_width + kv_width, kv_width).reshape({T, num_kv_heads_, D});
  backend_.gqa_rope_and_write_kv({.q = q,
                                  .k = k,
                                  .v = v,
                                  .q_norm = weights.q_norm,
                                  .k_norm = weights.k_norm,
                                  .eps = eps_,
                                  .interleaved = config_.rope.interleaved,
                                  .cos_sin = rope_.cos_sin,
                                  .positions = batch.positions,
                                  .slots = batch.slots,
                                  .k_cache = k_cache,
                                  .v_cache = v_cache});
  const Tensor o = o_.rows(0, T);  // [T, q_width]
  backend_.gqa_attention({.q = q,
                          .k_cache = k_cache,
                          .v_cache = v_cache,
                          .metadata = &batch.attention,
                          .positions = batch.positions,
                          .sliding_window = window.sliding_window,
                          .causal = window.causal,
                          .scale = static_cast<float>(config_.softmax_scale()),
                          .out = o.reshape({T, num_heads_, D})});
  const Tensor delta = delta_.rows(0, T);  // [T, hidden_size]
  backend_.linear({.x = o, .weight = &weights.o_proj, .out = delta, .provenance = provenance});
}

// delta = down(silu(gate x) * up x)
void GqaStack::mlp(const MlpWeights& weights, std::int64_t num_rows, Provenance provenance) {
  const Tensor gate_up = gate_up_.rows(0, num_rows);  // [T, 2 * intermediate_size]
  const Tensor act = mlp_act_.rows(0, num_rows);      // [T, intermediate_size]
  const Tensor delta = delta_.rows(0, num_rows);      // [T, hidden_size]
  backend_.linear(
      {.x = x(num_rows), .weight = &weights.gate_up, .out = gate_up, .provenance = provenance});
  backend_.silu_mul({.gate_up = gate_up, .out = act});
  backend_.linear({.x = act, .weight = &weights.down, .out = delta, .provenance = provenance});
}

void GqaStack::add_and_norm(const Tensor& norm_weight, std::int64_t num_rows) {
  const AddRmsNormArgs args = {.residual = residual(num_rows),
                               .delta = delta_.rows(0, num_rows),
                               .weight = norm_weight,
                               .eps = eps_,
                               .out = x(num_rows)};
  num_ranks_ > 1 ? backend_.sum_add_rms_norm(args) : backend_.add_rms_norm(args);
}

}  // namespace coppice
