#include "model/llama_model.h"

namespace coppice {

LlamaModel::LlamaModel(Backend& backend, const ModelConfig& config, LlamaWeights weights,
                       const ModelOptions& options)
    : backend_(backend),
      config_(config),
      weights_(std::move(weights)),
      lm_head_(backend, weights_.lm_head, options),
      stack_(backend, config, options),
      features_(backend, config.num_hidden_layers, options.max_rows),
      arena_(allocate_activations(backend, options.max_rows,
                                  {{&output_, backend.activation_dtype(), config.hidden_size}})) {}

void LlamaModel::forward(const ForwardBatch& batch, PagedKvCache& cache, const Tensor& logits,
                         const Tensor& features) {
  const std::int64_t T = batch.num_rows();
  COPPICE_CHECK(T > 0 && T <= stack_.max_rows(), T, " rows of ", stack_.max_rows());
  embed(batch.token_ids, stack_.residual(T));
  stack_.norm(weights_.layers[0].input_layernorm, T);
  for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const Tensor& next_norm = i + 1 == config_.num_hidden_layers
                                  ? weights_.norm
                                  : weights_.layers[index + 1].input_layernorm;
    stack_.layer(weights_.layers[index], next_norm, batch, cache.plane(i, 0), cache.plane(i, 1),
                 {});
    features_.capture(i, stack_.residual(T), features);
  }
  const std::int64_t num_outputs = batch.num_outputs();
  if (logits.empty() || num_outputs == 0) return;
  if (batch.output_rows.empty()) return compute_logits(stack_.x(T), logits);
  const Tensor output = output_.rows(0, num_outputs);  // [num_outputs, hidden_size]
  backend_.gather_rows({.src = stack_.x(T), .rows = batch.output_rows, .out = output});
  compute_logits(output, logits);
}

void LlamaModel::embed(const Tensor& token_ids, const Tensor& out) {
  backend_.embed({.token_ids = token_ids, .table = weights_.embed_tokens, .out = out});
}

}  // namespace coppice
