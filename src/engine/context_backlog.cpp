#include "engine/context_backlog.h"

#include <algorithm>
#include <numeric>

namespace coppice {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMaxTokens = 4096;

}  // namespace

ContextBacklog::ContextBacklog(Backend& backend, std::int64_t feature_size, std::int64_t max_step)
    : backend_(backend), max_step_(max_step) {
  const DType act = backend.activation_dtype();
  const std::int64_t row_bytes = feature_size * static_cast<std::int64_t>(size_of(act));
  const std::int64_t capacity = std::max(max_step, std::min(kMaxTokens, kMaxBytes / row_bytes));
  feature_buffer_ = backend.allocate(static_cast<std::size_t>(capacity * row_bytes));
  features_ = feature_buffer_.tensor(act, {capacity, feature_size});
  const auto int_bytes = static_cast<std::size_t>(capacity) * sizeof(std::int32_t);
  number_buffer_ = backend.allocate(3 * int_bytes);
  positions_ = number_buffer_.tensor(DType::kI32, {capacity});
  slots_ = number_buffer_.tensor(DType::kI32, {capacity}, int_bytes);
  all_rows_ = number_buffer_.tensor(DType::kI32, {max_step}, 2 * int_bytes);
  std::vector<std::int32_t> rows(static_cast<std::size_t>(max_step));
  std::iota(rows.begin(), rows.end(), 0);
  backend.upload(all_rows_, rows.data());
}

void ContextBacklog::add(const Tensor& features, const Tensor& positions, const Tensor& slots) {
  const std::int64_t T = features.shape(0);
  COPPICE_CHECK(T <= max_step_ && has_room(T), T, " rows after ", size_, " of ",
                positions_.shape(0));
  const auto copy = [&](const Tensor& from, const Tensor& to) {
    backend_.gather_rows({.src = from, .rows = all_rows_.rows(0, T), .out = to.rows(size_, T)});
  };
  copy(features, features_);
  const auto column = [](const Tensor& tensor) { return tensor.reshape({tensor.shape(0), 1}); };
  copy(column(positions), column(positions_));
  copy(column(slots), column(slots_));
  size_ += T;
}

void ContextBacklog::project(DflashModel& model, PagedKvCache& cache) {
  for (std::int64_t begin = 0; begin < size_; begin += max_step_) {
    const std::int64_t count = std::min(max_step_, size_ - begin);
    model.append_context(features_.rows(begin, count), positions_.rows(begin, count),
                         slots_.rows(begin, count), cache, Provenance::kDecided);
  }
  size_ = 0;
}

}  // namespace coppice
