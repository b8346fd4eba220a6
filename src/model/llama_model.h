// Llama (arXiv 2302.13971), SmolLM2 and Qwen3: dense layers with grouped-query attention. Qwen3
// normalises every query and key head before the rotation.
#pragma once

#include "model/feature_capture.h"
#include "model/gqa_stack.h"
#include "model/lm_head.h"
#include "model/model.h"

namespace coppice {

class LlamaModel : public Model {
 public:
  // `backend` must outlive the model.
  LlamaModel(Backend& backend, const ModelConfig& config, LlamaWeights weights,
             const ModelOptions& options);

  const ModelConfig& config() const override { return config_; }
  KvLayout kv_layout() const override { return stack_.kv_layout(); }
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
  Backend& backend_;
  ModelConfig config_;
  LlamaWeights weights_;
  LmHead lm_head_;
  GqaStack stack_;
  FeatureCapture features_;
  Tensor output_;  // [max_rows, hidden_size]: the rows whose logits are wanted
  Arena arena_;
};

}  // namespace coppice
