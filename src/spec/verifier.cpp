#include "spec/verifier.h"

#include "sampling/sampling_params.h"
#include "sampling/token_mask.h"

namespace coppice {

Verifier::Verifier(Backend& backend, Model& model, PagedKvCache& cache, std::int64_t max_rows,
                   std::int64_t max_outputs, std::int64_t feature_size)
    : backend_(backend), model_(model), cache_(cache) {
  const std::int64_t vocab_size = model.config().vocab_size;
  logits_buffer_ = backend.allocate(static_cast<std::size_t>(max_outputs * vocab_size * 4));
  all_.logits = logits_buffer_.tensor(DType::kF32, {max_outputs, vocab_size});
  const auto words = static_cast<std::int64_t>(mask_words(vocab_size));
  allowed_buffer_ = backend.allocate(static_cast<std::size_t>(max_outputs * words * 4));
  all_.allowed = allowed_buffer_.tensor(DType::kI32, {max_outputs, words});
  choices_buffer_ =
      backend.allocate(static_cast<std::size_t>(max_outputs * (3 + 2 * kMaxLogprobs) * 4));
  std::size_t offset = 0;
  const auto take = [&](DType dtype, std::int64_t columns) {
    const Tensor tensor = choices_buffer_.tensor(dtype, {max_outputs, columns}, offset);
    offset += static_cast<std::size_t>(tensor.num_bytes());
    return columns == 1 ? tensor.reshape({max_outputs}) : tensor;
  };
  all_.choices = take(DType::kI32, 1);
  all_.finite = take(DType::kI32, 1);
  all_.log_probs = take(DType::kF32, 1);
  all_.top_ids = take(DType::kI32, kMaxLogprobs);
  all_.top_log_probs = take(DType::kF32, kMaxLogprobs);
  if (feature_size == 0) return;
  const DType act = backend.activation_dtype();
  features_buffer_ =
      backend.allocate(static_cast<std::size_t>(max_rows * feature_size) * size_of(act));
  all_.features = features_buffer_.tensor(act, {max_rows, feature_size});
}

Verifier::Choices Verifier::outputs(std::int64_t num_rows, std::int64_t num_outputs) const {
  return {.logits = all_.logits.rows(0, num_outputs),
          .allowed = all_.allowed.rows(0, num_outputs),
          .choices = all_.choices.rows(0, num_outputs),
          .finite = all_.finite.rows(0, num_outputs),
          .log_probs = all_.log_probs.rows(0, num_outputs),
          .top_ids = all_.top_ids.rows(0, num_outputs),
          .top_log_probs = all_.top_log_probs.rows(0, num_outputs),
          .features = all_.features.empty() ? Tensor() : all_.features.rows(0, num_rows)};
}

Verifier::Choices Verifier::outputs_from(std::int64_t first, std::int64_t count) const {
  return {.logits = all_.logits.rows(first, count),
          .allowed = all_.allowed.rows(first, count),
          .choices = all_.choices.rows(first, count),
          .finite = all_.finite.rows(first, count),
          .log_probs = all_.log_probs.rows(first, count),
          .top_ids = all_.top_ids.rows(first, count),
          .top_log_probs = all_.top_log_probs.rows(first, count),
          .features = Tensor()};
}

void Verifier::forward(const ForwardBatch& batch, const Choices& out) {
  model_.forward(batch, cache_, out.logits, out.features);
}

void Verifier::sample(const Choices& out, const Tensor& positions, const Tensor& seq_of_row,
                      const Tensor& node_of_row, const TreeBuffers& trees,
                      const SamplingBuffers& sampling, const SampleOptions& options) {
  backend_.sample_rows({.logits = out.logits,
                        .positions = positions,
                        .seq_of_row = seq_of_row,
                        .node_of_row = node_of_row,
                        .trees = trees,
                        .sampling = sampling,
                        .greedy = options.greedy,
                        .allowed = options.masked ? out.allowed : Tensor(),
                        .choices = out.choices,
                        .finite = out.finite,
                        .log_probs = options.log_probs ? out.log_probs : Tensor()});
  if (options.top_log_probs) top_log_probs(out);
}

void Verifier::top_log_probs(const Choices& out) {
  backend_.top_k_log_probs(
      {.logits = out.logits, .ids = out.top_ids, .log_probs = out.top_log_probs});
}

}  // namespace coppice
