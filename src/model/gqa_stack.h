// The layers of Llama, Qwen3 and DFlash networks: grouped-query attention and a SwiGLU MLP around a
// residual stream. The owner puts token embeddings into residual() and takes normed rows from x().
#pragma once

#include "cache/paged_kv_cache.h"
#include "model/activations.h"
#include "model/forward_batch.h"
#include "model/model_options.h"
#include "model/weights.h"

namespace coppice {

// What a layer may see beyond its batch's metadata.
struct AttentionWindow {
  std::int64_t sliding_window = 0;  // 0: none
  bool causal = false;              // hides keys beyond the row's own position
};

class GqaStack {
 public:
  // `backend` must outlive the stack.
  GqaStack(Backend& backend, const ModelConfig& config, const ModelOptions& options);

  KvLayout kv_layout() const;
  std::int64_t max_rows() const { return max_rows_; }
  const Tensor& cos_sin() const { return rope_.cos_sin; }

  Tensor residual(std::int64_t num_rows) const { return residual_.rows(0, num_rows); }
  Tensor x(std::int64_t num_rows) const { return x_.rows(0, num_rows); }

  // x = norm(residual)
  void norm(const Tensor& weight, std::int64_t num_rows);
  // One layer over x and residual; then x = next_norm(residual). Keys and values go to the planes.
  void layer(const LlamaLayerWeights& weights, const Tensor& next_norm, const ForwardBatch& batch,
             const Tensor& k_cache, const Tensor& v_cache, const AttentionWindow& window);

 private:
  void attention(const LlamaLayerWeights& weights, const ForwardBatch& batch, const Tensor& k_cache,
                 const Tensor& v_cache, const AttentionWindow& window);
  void mlp(const MlpWeights& weights, std::int64_t num_rows, Provenance provenance);
  // The residual stream and its norm, with delta summed over ranks.
  void add_and_norm(const Tensor& norm_weight, std::int64_t num_rows);

  Backend& backend_;
  ModelConfig config_;
  std::int64_t num_ranks_;
  std::int64_t num_heads_;     // of this rank
  std::int64_t num_kv_heads_;  // of this rank
  float eps_;
  std::int64_t max_rows_;
  RopeTable rope_;

  // Activations [max_rows, ...]
  Tensor residual_;  // [hidden_size]
  Tensor x_;         // [hidden_size], normed
  Tensor delta_;     // [hidden_size]
  Tensor qkv_;       // [(num_heads + 2 * num_kv_heads) * head_dim]
  Tensor o_;         // [num_heads * head_dim]
  Tensor gate_up_;   // [2 * intermediate_size]
  Tensor mlp_act_;   // [intermediate_size]
  Arena arena_;
};

}  // namespace coppice
