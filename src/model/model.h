// A target network: one forward pass over rows, in the order of its paper, over the op table.
#pragma once

#include "backend/backend.h"
#include "cache/paged_kv_cache.h"
#include "model/forward_batch.h"
#include "model/model_config.h"

namespace coppice {

// Not thread-safe: forward is called by the thread that enqueues.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual KvLayout kv_layout() const = 0;

  // Residual streams that forward copies into `features`, by 0-based layer: the output of layer l
  // before the final norm. Set once before the first forward; ascending and unique.
  virtual void set_feature_layers(std::span<const std::int64_t> layers) = 0;

  // Enqueues one pass. Keys of all rows go to their slots in `cache`.
  //   logits   [batch.num_outputs(), vocab_size] f32
  //   features [batch.num_rows(), num_feature_layers * hidden_size] act; empty: not captured
  virtual void forward(const ForwardBatch& batch, PagedKvCache& cache, const Tensor& logits,
                       const Tensor& features) = 0;

  // The drafter borrows both ends of the target.
  virtual void embed(const Tensor& token_ids, const Tensor& out) = 0;
  // hidden [n, hidden_size] act, already normed -> logits [n, vocab_size] f32.
  virtual void compute_logits(const Tensor& hidden, const Tensor& logits) = 0;
};

}  // namespace coppice
