#include "sampling/sampling_state.h"

#include <algorithm>

namespace coppice {
namespace {

std::size_t bytes_needed(std::int64_t max_num_seqs, std::int64_t max_len) {
  const std::int64_t numbers = max_len + 2 * kMaxLogitBias + kMaxStopIds + 16;
  return static_cast<std::size_t>(max_num_seqs * numbers * 4) + 20 * 256;  // and padding
}

template <typename T>
void upload_row(Backend& backend, const Tensor& tensor, std::int64_t row, T value) {
  backend.upload(tensor.rows(row, 1), &value);
}

}  // namespace

SamplingState::SamplingState(Backend& backend, std::int64_t max_num_seqs, std::int64_t max_len)
    : backend_(backend), arena_(backend.allocate(bytes_needed(max_num_seqs, max_len))) {
  const auto floats = [&] { return arena_.allocate(DType::kF32, {max_num_seqs}); };
  const auto ints = [&] { return arena_.allocate(DType::kI32, {max_num_seqs}); };
  all_ = {.temperature = floats(),
          .top_k = ints(),
          .top_p = floats(),
          .min_p = floats(),
          .repetition_penalty = floats(),
          .presence_penalty = floats(),
          .frequency_penalty = floats(),
          .seed = arena_.allocate(DType::kI64, {max_num_seqs}),
          .choice_index = ints(),
          .prompt_len = ints(),
          .history = arena_.allocate(DType::kI32, {max_num_seqs, max_len}),
          .history_len = ints(),
          .bias_ids = arena_.allocate(DType::kI32, {max_num_seqs, kMaxLogitBias}),
          .bias_values = arena_.allocate(DType::kF32, {max_num_seqs, kMaxLogitBias}),
          .min_tokens = ints(),
          .stop_ids = arena_.allocate(DType::kI32, {max_num_seqs, kMaxStopIds}),
          .max_tokens = ints()};
}

SamplingBuffers SamplingState::view(std::int64_t batch) const {
  SamplingBuffers view = all_;
  for (Tensor* tensor :
       {&view.temperature, &view.top_k, &view.top_p, &view.min_p, &view.repetition_penalty,
        &view.presence_penalty, &view.frequency_penalty, &view.seed, &view.choice_index,
        &view.prompt_len, &view.history, &view.history_len, &view.bias_ids, &view.bias_values,
        &view.min_tokens, &view.stop_ids, &view.max_tokens})
    *tensor = tensor->rows(0, batch);
  return view;
}

void SamplingState::set(std::int64_t place, const SamplingParams& params, std::int64_t seed,
                        std::span<const std::int64_t> stop_ids,
                        std::span<const std::int32_t> history, std::int64_t prompt_len) {
  const auto set_float = [&](const Tensor& tensor, double value) {
    upload_row(backend_, tensor, place, static_cast<float>(value));
  };
  const auto set_int = [&](const Tensor& tensor, std::int64_t value) {
    constexpr std::int64_t kMax = 0x7fffffff;
    upload_row(backend_, tensor, place, static_cast<std::int32_t>(std::min(value, kMax)));
  };
  set_float(all_.temperature, params.is_greedy() ? 0 : params.temperature);
  set_int(all_.top_k, std::max<std::int64_t>(params.top_k, 0));
  set_float(all_.top_p, params.top_p);
  set_float(all_.min_p, params.min_p);
  set_float(all_.repetition_penalty, params.repetition_penalty);
  set_float(all_.presence_penalty, params.presence_penalty);
  set_float(all_.frequency_penalty, params.frequency_penalty);
  upload_row(backend_, all_.seed, place, seed);
  set_int(all_.choice_index, params.choice_index);
  set_int(all_.prompt_len, prompt_len);
  set_int(all_.history_len, std::ssize(history));
  set_int(all_.min_tokens, params.min_tokens);
  set_int(all_.max_tokens, params.max_tokens);

  std::vector<std::int32_t> ids(kMaxLogitBias, -1);
  std::vector<float> values(kMaxLogitBias, 0.0f);
  std::size_t i = 0;
  for (const auto& [id, value] : params.logit_bias) {
    ids[i] = static_cast<std::int32_t>(id);
    values[i++] = static_cast<float>(value);
  }
  backend_.upload(all_.bias_ids.rows(place, 1), ids.data());
  backend_.upload(all_.bias_values.rows(place, 1), values.data());

  COPPICE_CHECK_LE(std::ssize(stop_ids), kMaxStopIds);
  std::vector<std::int32_t> stops(kMaxStopIds, -1);
  std::transform(stop_ids.begin(), stop_ids.end(), stops.begin(),
                 [](std::int64_t id) { return static_cast<std::int32_t>(id); });
  backend_.upload(all_.stop_ids.rows(place, 1), stops.data());

  COPPICE_CHECK_LE(std::ssize(history), all_.history.shape(1));
  const Tensor beginning(all_.history.row<std::int32_t>(place), DType::kI32, {std::ssize(history)},
                         all_.history.device());
  backend_.upload(beginning, history.data());
}

bool is_plain_greedy(const SamplingParams& params) {
  return params.is_greedy() && params.repetition_penalty == 1 && params.presence_penalty == 0 &&
         params.frequency_penalty == 0 && params.logit_bias.empty() && params.min_tokens == 0;
}

}  // namespace coppice
