// Memory, weights and bookkeeping of the counting backend; its cost rules are in cost_rules.cpp.
#include "backend/cost/cost_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cost/cost_weights.h"

namespace coppice {

std::int64_t reserved_for(std::int64_t num_bytes) {
  constexpr std::int64_t kAlign = 512;
  const std::int64_t unit = num_bytes < kDevicePage / 2 ? kAlign : kDevicePage;
  return (num_bytes + unit - 1) / unit * unit;
}

struct CostBackend::Memory {
  std::int64_t allocated = 0, weights = 0, reserved = 0;
  std::uintptr_t next_address = std::uintptr_t{1} << 40;
};

CostBackend::CostBackend(const Options& options)
    : options_(options), memory_(std::make_shared<Memory>()) {}

void CostBackend::reset_ops() {
  ops_.clear();
  num_graphs_ = num_downloads_ = 0;
  is_verifying_ = false;
}

std::int64_t CostBackend::allocated_bytes() const {
  return memory_->allocated + memory_->weights;
}

std::int64_t CostBackend::reserved_bytes() const {
  return memory_->reserved;
}

void CostBackend::need_workspace(const char* family, std::size_t num_bytes) {
  std::int64_t& need = workspaces_[family];
  need = std::max(need, static_cast<std::int64_t>(num_bytes));
}

std::int64_t CostBackend::weight_bytes() const {
  return memory_->weights;
}

Buffer CostBackend::allocate(std::size_t num_bytes) {
  constexpr std::size_t kPage = 4096;
  const std::uintptr_t address = memory_->next_address;
  memory_->next_address += (num_bytes / kPage + 2) * kPage;
  const auto size = static_cast<std::int64_t>(num_bytes);
  memory_->allocated += size;
  memory_->reserved += reserved_for(size);
  // The number is an address to do arithmetic on; nothing ever reads or writes there.
  void* const data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  return Buffer(data, num_bytes, Device::kCuda, [memory = memory_, size](void*) {
    memory->allocated -= size;
    memory->reserved -= reserved_for(size);
  });
}

void CostBackend::download(void* dst, const Tensor& src) {
  ++num_downloads_;
  std::memset(dst, 0, static_cast<std::size_t>(src.num_bytes()));
}

LinearWeight CostBackend::load_linear(std::span<const HostMatrix> parts) {
  std::int64_t rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  const std::int64_t cols = parts[0].cols;
  const auto bytes = static_cast<double>(rows * cols) * static_cast<double>(kDenseWeightBytes);
  memory_->weights += static_cast<std::int64_t>(bytes);
  memory_->reserved += reserved_for(static_cast<std::int64_t>(bytes));
  return {.out_features = rows,
          .in_features = cols,
          .packed = std::make_shared<CostMatrix>(CostMatrix{.bytes = bytes})};
}

ExpertWeights CostBackend::load_experts(std::span<const ExpertSource> experts) {
  const ExpertSource& first = experts[0];
  double bytes = 0;
  for (const HostMatrix* matrix : {&first.gate, &first.up, &first.down})
    bytes += static_cast<double>(matrix->rows * matrix->cols) * bytes_per_weight(matrix->format);
  const auto count = static_cast<std::int64_t>(experts.size());
  const auto all = static_cast<std::int64_t>(bytes * static_cast<double>(count));
  memory_->weights += all;
  memory_->reserved += reserved_for(all - all / 3) + reserved_for(all / 3);  // gate and up; down
  const bool is_int4 = first.gate.format == WeightFormat::kInt4Group32;
  return {.num_experts = count,
          .hidden_size = first.gate.cols,
          .intermediate_size = first.gate.rows,
          .packed = std::make_shared<CostExperts>(
              CostExperts{.bytes_per_expert = bytes, .is_int4 = is_int4})};
}

void CostBackend::run_graph(const GraphKey&, const std::function<void()>& body) {
  ++num_graphs_;
  body();
}

const std::vector<double>& CostBackend::loads_of(std::int64_t num_experts, std::int64_t top_k,
                                                 std::int64_t rows) {
  if (!scenario_.expert_loads.empty()) return scenario_.expert_loads;
  const std::tuple key{num_experts, top_k, rows, scenario_.expert_overlap};
  if (std::exchange(loads_key_, key) != key)
    loads_ = expert_loads(num_experts, top_k, rows, scenario_.expert_overlap);
  return loads_;
}

double CostBackend::live_rows(std::int64_t rows) const {
  return static_cast<double>(is_verifying_ ? std::min(rows, scenario_.verify_rows) : rows);
}

}  // namespace coppice
