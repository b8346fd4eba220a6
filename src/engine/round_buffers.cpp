#include "engine/round_buffers.h"

#include <cstring>
#include <functional>

#include "engine/metrics.h"
#include "engine/row_buckets.h"
#include "sampling/sampling_params.h"

namespace coppice {
namespace {

struct Field {
  Tensor* tensor;
  DType dtype;
  std::int64_t rows;
  std::int64_t columns = 0;  // 0: one-dimensional
};

std::size_t padded_bytes(const Field& field) {
  const std::int64_t count = field.rows * (field.columns == 0 ? 1 : field.columns);
  return (static_cast<std::size_t>(count) * size_of(field.dtype) + 255) / 256 * 256;
}

// Lays the fields one after the other into memory that `allocate` gives.
Buffer lay_out(const std::vector<Field>& fields,
               const std::function<Buffer(std::size_t)>& allocate) {
  std::size_t total = 0;
  for (const Field& field : fields) total += padded_bytes(field);
  Buffer buffer = allocate(total);
  std::size_t offset = 0;
  for (const Field& field : fields) {
    *field.tensor = field.columns == 0
                        ? buffer.tensor(field.dtype, {field.rows}, offset)
                        : buffer.tensor(field.dtype, {field.rows, field.columns}, offset);
    offset += padded_bytes(field);
  }
  return buffer;
}

std::vector<Field> result_fields(RoundResults& out, const RoundSizes& sizes) {
  const std::int64_t batch = sizes.max_num_seqs, nodes = sizes.max_nodes + 1;
  const std::int64_t path = sizes.max_path;
  return {{&out.times, DType::kI64, static_cast<std::int64_t>(kNumVerbs) + 1},
          {&out.trees.tokens, DType::kI32, batch, nodes},
          {&out.trees.parents, DType::kI32, batch, nodes},
          {&out.trees.depths, DType::kI32, batch, nodes},
          {&out.trees.scores, DType::kF32, batch, nodes},
          {&out.trees.counts, DType::kI32, batch},
          {&out.row_offsets, DType::kI32, batch + 1},
          {&out.accepted_rows, DType::kI32, batch, path},
          {&out.emitted, DType::kI32, batch, path},
          {&out.num_emitted, DType::kI32, batch},
          {&out.finish_reason, DType::kI32, batch},
          {&out.log_probs, DType::kF32, batch * path, 1},
          {&out.top_ids, DType::kI32, batch * path, kMaxLogprobs},
          {&out.top_log_probs, DType::kF32, batch * path, kMaxLogprobs}};
}

std::size_t offset_in(const Tensor& tensor, const Buffer& buffer) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(tensor.raw()) -
                                  static_cast<const std::byte*>(buffer.data()));
}

}  // namespace

RoundBuffers::RoundBuffers(Backend& backend, const RoundSizes& sizes)
    : backend_(backend), sizes_(sizes) {
  const std::int64_t batch = sizes.max_num_seqs, rows = sizes.max_rows, path_size = sizes.max_path;
  std::vector<Field> fields = {{&anchors, DType::kI32, batch},
                               {&context_len, DType::kI32, batch},
                               {&block_tables, DType::kI32, batch, sizes.max_blocks},
                               {&path, DType::kI32, rows, path_size}};
  for (Tensor* tensor :
       {&token_ids, &positions, &slots, &seq_of_row, &node_of_row, &kv_len, &path_len})
    fields.push_back({tensor, DType::kI32, rows});
  for (Tensor* tensor :
       {&output_rows, &output_positions, &output_seqs, &output_nodes, &output_slots})
    fields.push_back({tensor, DType::kI32, sizes.max_outputs});
  for (Tensor* tensor : {&move_src, &move_dst, &feature_rows, &feature_positions, &feature_slots})
    fields.push_back({tensor, DType::kI32, batch * path_size});
  if (sizes.feature_size > 0)
    fields.push_back(
        {&context_features, backend.activation_dtype(), batch * path_size, sizes.feature_size});
  const auto on_device = [&](std::size_t bytes) { return backend.allocate(bytes); };
  buffer_ = lay_out(fields, on_device);
  control_buffer_ = lay_out({{&budgets, DType::kI32, batch},
                             {&min_scores, DType::kF32, batch},
                             {&cost_ms, DType::kF32, sizes.num_buckets},
                             {&bucket_rows, DType::kI32, sizes.num_buckets},
                             {&calibration, DType::kF32, path_size}},
                            on_device);
  host_control_ = Buffer::host(control_buffer_.num_bytes());
  std::memcpy(on_host(bucket_rows), kRowBuckets.data(), sizeof kRowBuckets);
  results_buffer_ = lay_out(result_fields(results, sizes), on_device);
  short_bytes_ = offset_in(results.log_probs, results_buffer_);
  for (HostStep& step : host_steps_)
    step.buffer = lay_out(result_fields(step.results, sizes),
                          [&](std::size_t bytes) { return backend.allocate_host(bytes); });
  const std::vector<std::int32_t> nobody(static_cast<std::size_t>(batch), -1);
  backend.upload(anchors, nobody.data());
}

void* RoundBuffers::on_host(const Tensor& control) const {
  return static_cast<std::byte*>(host_control_.data()) + offset_in(control, control_buffer_);
}

void RoundBuffers::send(const Control& control) {
  bool changed = false;
  const auto set = [&](const Tensor& tensor, const auto& values) {
    const std::size_t bytes = values.size() * sizeof(values[0]);
    if (bytes == 0 || std::memcmp(on_host(tensor), values.data(), bytes) == 0) return;
    std::memcpy(on_host(tensor), values.data(), bytes);
    changed = true;
  };
  set(budgets, control.budgets);
  set(min_scores, control.min_scores);
  set(cost_ms, control.cost_ms);
  set(calibration, control.calibration);
  if (!changed && control_is_sent_) return;
  const auto bytes = static_cast<std::int64_t>(control_buffer_.num_bytes());
  backend_.upload(control_buffer_.tensor(DType::kU8, {bytes}), host_control_.data());
  control_is_sent_ = true;
}

std::int64_t RoundBuffers::start_results(bool log_probs) {
  const std::int64_t number = num_steps_++;
  HostStep& step = step_of(number);
  const std::size_t bytes = log_probs ? results_buffer_.num_bytes() : short_bytes_;
  step.ticket = backend_.start_download(
      step.buffer.data(), results_buffer_.tensor(DType::kU8, {static_cast<std::int64_t>(bytes)}));
  return number;
}

const RoundResults& RoundBuffers::finish_results(std::int64_t number) {
  COPPICE_CHECK(number < num_steps_ && number + kMaxSteps >= num_steps_, number, " of ",
                num_steps_);
  backend_.wait_for(step_of(number).ticket);
  return step_of(number).results;
}

}  // namespace coppice
