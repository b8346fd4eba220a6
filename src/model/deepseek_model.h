// DeepSeek-V3 (arXiv 2412.19437) and Kimi K2: multi-head latent attention and a mixture of experts.
//
// Attention runs in the weight-absorbed form for prompt and decided rows alike: queries are carried
// into the latent space by W_UK, all heads read one cached row [latent | rotated k_pe], and W_UV
// carries the result back.
#pragma once

#include <memory>

#include "model/activations.h"
#include "model/feature_capture.h"
#include "model/lm_head.h"
#include "model/model.h"
#include "model/model_options.h"
#include "model/weights.h"

namespace coppice {

class DeepseekModel : public Model {
 public:
  // `backend` must outlive the model.
  DeepseekModel(Backend& backend, const ModelConfig& config, DeepseekWeights weights,
                const ModelOptions& options);

  const ModelConfig& config() const override { return config_; }
  KvLayout kv_layout() const override;
  void set_feature_layers(std::span<const std::int64_t> layers) override {
    features_.set_layers(layers);
  }
  void forward(const ForwardBatch& batch, PagedKvCache& cache, const Tensor& logits,
               const Tensor& features) override;
  void embed(const Tensor& token_ids, const Tensor& out) override;
  void compute_logits(const Tensor& hidden, const Tensor& logits) override {
    lm_head_.compute(hidden, logits);
  }

 private:
  // x [T, hidden_size] normed -> delta [T, hidden_size], to be added to the residual stream.
  void attention(const DeepseekLayerWeights& layer, const ForwardBatch& batch, const Tensor& cache);
  void feed_forward(const DeepseekLayerWeights& layer, const ForwardBatch& batch);
  void mlp(const MlpWeights& weights, const Tensor& out, std::int64_t num_rows,
           Provenance provenance);
  void experts(const DeepseekLayerWeights& layer, const ForwardBatch& batch);
  // The residual stream and its norm, with delta summed over ranks.
  void add_and_norm(const Tensor& norm, std::int64_t num_rows);

  Backend& backend_;
  ModelConfig config_;
  DeepseekWeights weights_;
  LmHead lm_head_;
  ParallelConfig parallel_;
  std::int64_t num_heads_;  // of this rank
  float eps_;
  std::int64_t max_rows_;
  FeatureCapture features_;
  RopeTable rope_;

  // Activations [max_rows, ...]
  Tensor residual_;       // [hidden_size]
  Tensor x_;              // [hidden_size], normed
  Tensor delta_;          // [hidden_size]
  Tensor qkv_a_;          // [q_lora_rank + kv_lora_rank + rope_dim]
  Tensor c_q_;            // [q_lora_rank]
  Tensor q_;              // [num_heads * nope_dim + num_heads * rope_dim]
  Tensor q_lat_;          // [num_heads * kv_lora_rank]
  Tensor o_lat_;          // [num_heads * kv_lora_rank]
  Tensor o_;              // [num_heads * v_head_dim]
  Tensor gate_up_;        // [2 * width of the widest MLP]
  Tensor mlp_act_;        // [width of the widest MLP]
  Tensor shared_;         // [hidden_size]
  Tensor router_logits_;  // [n_routed_experts] f32
  Tensor topk_ids_;       // [num_experts_per_tok] i32
  Tensor topk_weights_;   // [num_experts_per_tok] f32
  Tensor output_;         // [hidden_size]: the rows whose logits are wanted
  Arena arena_;
};

}  // namespace coppice
