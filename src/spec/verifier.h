// One pass of the target over the rows of a step, then one choice per node.
#pragma once

#include "backend/backend.h"
#include "model/model.h"

namespace coppice {

// What the sequences of a step ask of sampling.
struct SampleOptions {
  bool greedy = false;         // all are greedy, without filter, penalty, bias or ban
  bool log_probs = false;      // some want the log-probability of the choice
  bool top_log_probs = false;  // some want alternatives
  bool masked = false;         // Choices::allowed holds the ids that each row may choose
};

// Device memory at fixed addresses for the largest step.
class Verifier {
 public:
  // max_rows bounds every step, max_outputs the rows whose logits are wanted.
  Verifier(Backend& backend, Model& model, PagedKvCache& cache, std::int64_t max_rows,
           std::int64_t max_outputs, std::int64_t feature_size);

  struct Choices {
    Tensor logits;     // [num_outputs, vocab_size] f32
    Tensor allowed;    // [num_outputs, ceil(vocab_size / 32)] i32 bit mask, uploaded by the caller
    Tensor choices;    // [num_outputs] i32
    Tensor finite;     // [num_outputs] i32
    Tensor log_probs;  // [num_outputs] f32: of the choice
    Tensor top_ids;    // [num_outputs, kMaxLogprobs] i32
    Tensor top_log_probs;  // [num_outputs, kMaxLogprobs] f32
    Tensor features;       // [num_rows, feature_size] act; empty without a drafter network
  };

  // Where a step of so many rows and outputs leaves its results: fixed addresses.
  Choices outputs(std::int64_t num_rows, std::int64_t num_outputs) const;
  // Outputs first .. first + count - 1 of such a step, without its features.
  Choices outputs_from(std::int64_t first, std::int64_t count) const;
  // Of Choices::allowed for the largest step.
  std::size_t mask_bytes() const { return static_cast<std::size_t>(all_.allowed.num_bytes()); }
  // The pass: keys go to the cache, logits and features to `out`.
  void forward(const ForwardBatch& batch, const Choices& out);
  // One choice for each output row. positions, seq_of_row, node_of_row are [num_outputs]. `greedy`:
  // as in SampleRowsArgs. The choices' log-probabilities are computed where `log_probs` asks.
  void sample(const Choices& out, const Tensor& positions, const Tensor& seq_of_row,
              const Tensor& node_of_row, const TreeBuffers& trees, const SamplingBuffers& sampling,
              const SampleOptions& options);

 private:
  void top_log_probs(const Choices& out);

  Backend& backend_;
  Model& model_;
  PagedKvCache& cache_;
  Buffer logits_buffer_, allowed_buffer_, choices_buffer_, features_buffer_;
  Choices all_;
};

}  // namespace coppice
