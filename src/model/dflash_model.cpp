#include "model/dflash_model.h"

#include "model/gqa_stack.h"
#include "model/load_model.h"

namespace coppice {
namespace {

class DflashNetwork : public DflashModel {
 public:
  DflashNetwork(Backend& backend, const DflashConfig& config, DflashWeights weights, Model& target,
                const ModelOptions& options);

  const DflashConfig& config() const override { return config_; }
  KvLayout kv_layout() const override { return stack_.kv_layout(); }
  void append_context(const Tensor& features, const Tensor& positions, const Tensor& slots,
                      PagedKvCache& cache, Provenance provenance) override;
  void draft(const ForwardBatch& batch, PagedKvCache& cache, const Tensor& logits) override;

 private:
  AttentionWindow window_of(std::int64_t layer) const;

  Backend& backend_;
  DflashConfig config_;
  DflashWeights weights_;
  Model& target_;
  ParallelConfig parallel_;
  GqaStack stack_;
  std::int64_t draft_window_;
  float eps_;
  std::int64_t kv_width_;  // of this rank
  Buffer draft_rows_buffer_;
  Tensor draft_rows_;  // [max_batch * (block_size - 1)] i32: all rows but the anchors'

  Tensor fused_;       // [max_rows, hidden_size]
  Tensor context_;     // [max_rows, hidden_size], normed
  Tensor context_kv_;  // [max_rows, num_layers * 2 * kv_width]
  Tensor drafts_;      // [max_batch * (block_size - 1), hidden_size]
  Arena context_arena_;
  Arena draft_arena_;
};

DflashNetwork::DflashNetwork(Backend& backend, const DflashConfig& config, DflashWeights weights,
                             Model& target, const ModelOptions& options)
    : backend_(backend),
      config_(config),
      weights_(std::move(weights)),
      target_(target),
      parallel_(options.parallel),
      stack_(backend, config.network, options),
      draft_window_(options.draft_window),
      eps_(static_cast<float>(config.network.rms_norm_eps)),
      kv_width_(stack_.kv_layout().row_size),
      context_arena_(
          allocate_activations(backend, options.max_rows,
                               {{&fused_, backend.activation_dtype(), config.network.hidden_size},
                                {&context_, backend.activation_dtype(), config.network.hidden_size},
                                {&context_kv_, backend.activation_dtype(),
                                 config.network.num_hidden_layers * 2 * kv_width_}})),
      draft_arena_(allocate_activations(
          backend, options.max_batch * (config.block_size - 1),
          {{&drafts_, backend.activation_dtype(), config.network.hidden_size}})) {
  std::vector<std::int32_t> rows;
  for (std::int64_t row = 0; row < options.max_batch * config.block_size; ++row)
    if (row % config.block_size != 0) rows.push_back(static_cast<std::int32_t>(row));
  draft_rows_buffer_ = backend.allocate(rows.size() * sizeof(std::int32_t));
  draft_rows_ = draft_rows_buffer_.tensor(DType::kI32, {static_cast<std::int64_t>(rows.size())});
  backend.upload(draft_rows_, rows.data());
}

AttentionWindow DflashNetwork::window_of(std::int64_t layer) const {
  const bool is_sliding = config_.layer_is_sliding[static_cast<std::size_t>(layer)];
  AttentionWindow window{.sliding_window = is_sliding ? config_.sliding_window : 0,
                         .causal = is_sliding && config_.causal_sliding_layers};
  const bool is_narrower = window.sliding_window == 0 || draft_window_ < window.sliding_window;
  if (draft_window_ > 0 && is_narrower) window.sliding_window = draft_window_;
  return window;
}

// The context has no residual stream: hidden_norm(fc(features)) is projected to keys and values of
// every layer at once, with the same matrices as the block's own, and without input_layernorm.
void DflashNetwork::append_context(const Tensor& features, const Tensor& positions,
                                   const Tensor& slots, PagedKvCache& cache,
                                   Provenance provenance) {
  const std::int64_t C = features.shape(0);
  COPPICE_CHECK(C > 0 && C <= stack_.max_rows(), C, " rows of ", stack_.max_rows());
  const ModelConfig& c = config_.network;
  const std::int64_t num_kv_heads = kv_width_ / c.head_dim;
  const Tensor fused = fused_.rows(0, C), context = context_.rows(0, C);  // [C, hidden_size]
  const Tensor kv = context_kv_.rows(0, C);            // [C, num_layers * 2 * kv_width]
  const std::int64_t width = weights_.fc.in_features;  // this rank's columns
  backend_.linear({.x = features.columns(parallel_.rank * width, width),
                   .weight = &weights_.fc,
                   .out = fused,
                   .provenance = provenance});
  if (parallel_.size > 1) backend_.all_reduce({.x = fused});
  backend_.rms_norm({.x = fused, .weight = weights_.hidden_norm, .eps = eps_, .out = context});
  backend_.linear(
      {.x = context, .weight = &weights_.context_kv, .out = kv, .provenance = provenance});
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const std::int64_t column = i * 2 * kv_width_;
    backend_.gqa_rope_and_write_kv(
        {.q = {},
         .k = kv.columns(column, kv_width_).reshape({C, num_kv_heads, c.head_dim}),
         .v = kv.columns(column + kv_width_, kv_width_).reshape({C, num_kv_heads, c.head_dim}),
         .q_norm = {},
         .k_norm = weights_.layers[static_cast<std::size_t>(i)].k_norm,
         .eps = eps_,
         .interleaved = c.rope.interleaved,
         .cos_sin = stack_.cos_sin(),
         .positions = positions,
         .slots = slots,
         .k_cache = cache.plane(i, 0),
         .v_cache = cache.plane(i, 1)});
  }
}

void DflashNetwork::draft(const ForwardBatch& batch, PagedKvCache& cache, const Tensor& logits) {
  const std::int64_t T = batch.num_rows();
  COPPICE_CHECK_EQ(T % config_.block_size, 0);
  const std::int64_t num_drafts = T / config_.block_size * (config_.block_size - 1);
  COPPICE_CHECK(T > 0 && T <= stack_.max_rows(), T, " rows of ", stack_.max_rows());
  COPPICE_CHECK_LE(num_drafts, draft_rows_.shape(0));
  const std::int64_t num_layers = config_.network.num_hidden_layers;

  target_.embed(batch.token_ids, stack_.residual(T));
  stack_.norm(weights_.layers[0].input_layernorm, T);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const Tensor& next_norm =
        i + 1 == num_layers ? weights_.norm : weights_.layers[index + 1].input_layernorm;
    stack_.layer(weights_.layers[index], next_norm, batch, cache.plane(i, 0), cache.plane(i, 1),
                 window_of(i));
  }
  const Tensor drafts = drafts_.rows(0, num_drafts);  // [B * (block_size - 1), hidden_size]
  backend_.gather_rows(
      {.src = stack_.x(T), .rows = draft_rows_.rows(0, num_drafts), .out = drafts});
  target_.compute_logits(drafts, logits);
}

}  // namespace

std::unique_ptr<DflashModel> make_dflash_model(Backend& backend, const DflashConfig& config,
                                               DflashWeights weights, Model& target,
                                               const ModelOptions& options) {
  return std::make_unique<DflashNetwork>(backend, config, std::move(weights), target, options);
}

}  // namespace coppice
