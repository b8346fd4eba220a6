#include "model/deepseek_model.h"

#include <algorithm>

namespace coppice {
namespace {

std::int64_t widest_mlp(const ModelConfig& c) {
  const std::int64_t dense = c.first_k_dense_replace > 0 ? c.intermediate_size : 0;
  return std::max(dense, std::max<std::int64_t>(c.n_shared_experts, 1) * c.moe_intermediate_size);
}

// Columns [begin, begin + heads * dim) of x [T, n] as [T, heads, dim].
Tensor heads_of(const Tensor& x, std::int64_t begin, std::int64_t heads, std::int64_t dim) {
  return x.columns(begin, heads * dim).reshape({x.shape(0), heads, dim});
}

// The front of a buffer of wider rows as [rows, width], dense.
Tensor front_of(const Tensor& buffer, std::int64_t rows, std::int64_t width) {
  return {buffer.raw(), buffer.dtype(), {rows, width}, buffer.device()};
}

}  // namespace

DeepseekModel::DeepseekModel(Backend& backend, const ModelConfig& config, DeepseekWeights weights,
                             const ModelOptions& options)
    : backend_(backend),
      config_(config),
      weights_(std::move(weights)),
      lm_head_(backend, weights_.lm_head, options),
      parallel_(options.parallel),
      num_heads_(config.num_attention_heads / options.parallel.size),
      eps_(static_cast<float>(config.rms_norm_eps)),
      max_rows_(options.max_rows),
      features_(backend, config.num_hidden_layers, options.max_rows),
      rope_(backend, config.rope, config.qk_rope_head_dim, num_positions(config, options)),
      arena_(Buffer()) {
  const ModelConfig& c = config_;
  const DType act = backend.activation_dtype();
  const std::int64_t mlp_width = widest_mlp(c) / parallel_.size;
  arena_ =
      allocate_activations(backend, max_rows_,
                           {{&residual_, act, c.hidden_size},
                            {&x_, act, c.hidden_size},
                            {&delta_, act, c.hidden_size},
                            {&qkv_a_, act, c.q_lora_rank + c.kv_lora_rank + c.qk_rope_head_dim},
                            {&c_q_, act, c.q_lora_rank},
                            {&q_, act, num_heads_ * (c.qk_nope_head_dim + c.qk_rope_head_dim)},
                            {&q_lat_, act, num_heads_ * c.kv_lora_rank},
                            {&o_lat_, act, num_heads_ * c.kv_lora_rank},
                            {&o_, act, num_heads_ * c.v_head_dim},
                            {&gate_up_, act, 2 * mlp_width},
                            {&mlp_act_, act, mlp_width},
                            {&shared_, act, c.hidden_size},
                            {&router_logits_, DType::kF32, c.n_routed_experts},
                            {&topk_ids_, DType::kI32, c.num_experts_per_tok},
                            {&topk_weights_, DType::kF32, c.num_experts_per_tok},
                            {&output_, act, c.hidden_size}});
}

KvLayout DeepseekModel::kv_layout() const {
  return {.num_layers = config_.num_hidden_layers,
          .planes_per_layer = 1,
          .row_size = config_.kv_lora_rank + config_.qk_rope_head_dim};
}

void DeepseekModel::forward(const ForwardBatch& batch, PagedKvCache& cache, const Tensor& logits,
                            const Tensor& features) {
  const std::int64_t T = batch.num_rows();
  COPPICE_CHECK(T > 0 && T <= max_rows_, T, " rows of ", max_rows_);
  const Tensor residual = residual_.rows(0, T), x = x_.rows(0, T);  // [T, hidden_size]

  embed(batch.token_ids, residual);
  backend_.rms_norm(
      {.x = residual, .weight = weights_.layers[0].input_layernorm, .eps = eps_, .out = x});
  backend_.plan_mla_attention({.metadata = &batch.attention,
                               .num_heads = num_heads_,
                               .kv_lora_rank = config_.kv_lora_rank,
                               .qk_rope_head_dim = config_.qk_rope_head_dim});
  for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const DeepseekLayerWeights& layer = weights_.layers[static_cast<std::size_t>(i)];
    const bool is_last = i + 1 == config_.num_hidden_layers;
    attention(layer, batch, cache.plane(i));
    add_and_norm(layer.post_attention_layernorm, T);
    feed_forward(layer, batch);
    add_and_norm(
        is_last ? weights_.norm : weights_.layers[static_cast<std::size_t>(i + 1)].input_layernorm,
        T);
    // The residual stream is now the output of layer i, before the next norm.
    features_.capture(i, residual, features);
  }

  const std::int64_t num_outputs = batch.num_outputs();
  if (logits.empty() || num_outputs == 0) return;
  if (batch.output_rows.empty()) return compute_logits(x, logits);
  const Tensor output = output_.rows(0, num_outputs);  // [num_outputs, hidden_size]
  backend_.gather_rows({.src = x, .rows = batch.output_rows, .out = output});
  compute_logits(output, logits);
}

void DeepseekModel::attention(const DeepseekLayerWeights& layer, const ForwardBatch& batch,
                              const Tensor& cache) {
  const ModelConfig& c = config_;
  const std::int64_t T = batch.num_rows(), H = num_heads_;
  const Provenance provenance = batch.attention.provenance;

  const Tensor qkv_a = qkv_a_.rows(0, T);  // [T, q_lora_rank + kv_lora_rank + rope_dim]
  backend_.linear(
      {.x = x_.rows(0, T), .weight = &layer.qkv_a, .out = qkv_a, .provenance = provenance});
  const MlaQueriesArgs queries = {.qkv_a = qkv_a,
                                  .q_norm = layer.q_a_layernorm,
                                  .kv_norm = layer.kv_a_layernorm,
                                  .eps = eps_,
                                  .q_b = &layer.q_b,
                                  .k_absorbed = &layer.k_absorbed,
                                  .cos_sin = rope_.cos_sin,
                                  .positions = batch.positions,
                                  .slots = batch.slots,
                                  .cache = cache,
                                  .provenance = provenance,
                                  .c_q = c_q_.rows(0, T),
                                  .q = q_.rows(0, T),  // [T, H * nope_dim + H * rope_dim]
                                  .q_lat = heads_of(q_lat_.rows(0, T), 0, H, c.kv_lora_rank)};
  backend_.mla_queries(queries);
  const Tensor o_lat = heads_of(o_lat_.rows(0, T), 0, H, c.kv_lora_rank);
  backend_.mla_attention({.q_lat = queries.q_lat,
                          .q_pe = queries.q_pe(),
                          .cache = cache,
                          .metadata = &batch.attention,
                          .scale = static_cast<float>(c.softmax_scale()),
                          .out = o_lat});
  const Tensor o = o_.rows(0, T);  // [T, H * v_head_dim]
  backend_.head_linear({.x = o_lat,
                        .weight = &layer.v_absorbed,
                        .out = heads_of(o, 0, H, c.v_head_dim),
                        .provenance = provenance});
  const Tensor delta = delta_.rows(0, T);  // [T, hidden_size]
  backend_.linear({.x = o, .weight = &layer.o_proj, .out = delta, .provenance = provenance});
}

void DeepseekModel::feed_forward(const DeepseekLayerWeights& layer, const ForwardBatch& batch) {
  const Tensor delta = delta_.rows(0, batch.num_rows());
  if (layer.is_routed)
    experts(layer, batch);
  else
    mlp(layer.mlp, delta, batch.num_rows(), batch.attention.provenance);
}

// out = down(silu(gate x) * up x)
void DeepseekModel::mlp(const MlpWeights& weights, const Tensor& out, std::int64_t num_rows,
                        Provenance provenance) {
  const std::int64_t width = weights.down.in_features;
  const Tensor gate_up = front_of(gate_up_, num_rows, 2 * width);
  const Tensor act = front_of(mlp_act_, num_rows, width);
  backend_.linear({.x = x_.rows(0, num_rows),
                   .weight = &weights.gate_up,
                   .out = gate_up,
                   .provenance = provenance});
  backend_.silu_mul({.gate_up = gate_up, .out = act});
  backend_.linear({.x = act, .weight = &weights.down, .out = out, .provenance = provenance});
}

// delta = shared expert + weighted sum of the chosen experts. The router's logits stay in fp32.
void DeepseekModel::experts(const DeepseekLayerWeights& layer, const ForwardBatch& batch) {
  const std::int64_t T = batch.num_rows();
  MoeBlockArgs args = {.x = x_.rows(0, T),
                       .router = &layer.router,
                       .bias = layer.e_score_correction_bias,
                       .seq_of_row = batch.attention.seq_of_row,
                       .norm_topk_prob = config_.norm_topk_prob,
                       .routed_scaling_factor = static_cast<float>(config_.routed_scaling_factor),
                       .experts = &layer.experts,
                       .out = delta_.rows(0, T),
                       .provenance = batch.attention.provenance,
                       .topk_ids = topk_ids_.rows(0, T),            // [T, num_experts_per_tok] i32
                       .topk_weights = topk_weights_.rows(0, T),    // [T, num_experts_per_tok] f32
                       .router_logits = router_logits_.rows(0, T),  // [T, n_routed_experts] f32
                       .gate_up = {},
                       .act = {},
                       .shared = {}};
  if (config_.n_shared_experts > 0) {
    args.shared_gate_up = &layer.mlp.gate_up;
    args.shared_down = &layer.mlp.down;
    args.gate_up = front_of(gate_up_, T, layer.mlp.gate_up.out_features);
    args.act = front_of(mlp_act_, T, layer.mlp.down.in_features);
    args.shared = shared_.rows(0, T);
  }
  backend_.moe_block(args);
}

void DeepseekModel::add_and_norm(const Tensor& norm, std::int64_t num_rows) {
  const AddRmsNormArgs args = {.residual = residual_.rows(0, num_rows),
                               .delta = delta_.rows(0, num_rows),
                               .weight = norm,
                               .eps = eps_,
                               .out = x_.rows(0, num_rows)};
  parallel_.size > 1 ? backend_.sum_add_rms_norm(args) : backend_.add_rms_norm(args);
}

void DeepseekModel::embed(const Tensor& token_ids, const Tensor& out) {
  backend_.embed({.token_ids = token_ids, .table = weights_.embed_tokens, .out = out});
}

}  // namespace coppice
