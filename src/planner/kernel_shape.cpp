#include "planner/kernel_shape.h"

#include <algorithm>

#include <vector>

#include "backend/cost/cost_backend.h"

namespace coppice {
namespace {

// Tensors without memory, for one op at a time.
class Paper {
 public:
  explicit Paper(const MeasuredKernel& kernel) : kernel_(kernel) {
    backend_.set_scenario({.batch = std::max<std::int64_t>(kernel.sequences, 1),
                           .context_len = kernel.context,
                           .verify_rows = kernel.rows});
  }

  Tensor tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    constexpr std::size_t kPlenty = std::size_t{1} << 40;
    buffers_.push_back(backend_.allocate(kPlenty));
    return {buffers_.back().data(), dtype, shape, Device::kCuda};
  }

  void product(bool by_head) {
    const MeasuredKernel& k = kernel_;
    const HostMatrix matrix{.format = WeightFormat::kBF16, .rows = k.outputs, .cols = k.inputs};
    const LinearWeight weight = backend_.load_linear({&matrix, 1});
    if (!by_head)
      return backend_.linear({.x = tensor(DType::kBF16, {k.rows, k.inputs}),
                              .weight = &weight,
                              .out = tensor(DType::kBF16, {k.rows, k.outputs})});
    backend_.head_linear({.x = tensor(DType::kBF16, {k.rows, k.heads, k.inputs}),
                          .weight = &weight,
                          .out = tensor(DType::kBF16, {k.rows, k.heads, k.outputs / k.heads})});
  }

  void experts() {
    const MeasuredKernel& k = kernel_;
    const HostMatrix up{.format = WeightFormat::kInt4Group32, .rows = k.outputs, .cols = k.inputs};
    const HostMatrix down{
        .format = WeightFormat::kInt4Group32, .rows = k.inputs, .cols = k.outputs};
    const std::vector<ExpertSource> sources(static_cast<std::size_t>(k.num_experts),
                                            {.gate = up, .up = up, .down = down});
    const ExpertWeights experts = backend_.load_experts(sources);
    backend_.moe_experts({.x = tensor(DType::kBF16, {k.rows, k.inputs}),
                          .topk_ids = tensor(DType::kI32, {k.rows, k.top_k}),
                          .topk_weights = tensor(DType::kF32, {k.rows, k.top_k}),
                          .experts = &experts,
                          .shared = {},
                          .out = tensor(DType::kBF16, {k.rows, k.inputs})});
  }

  void mla() {
    const MeasuredKernel& k = kernel_;
    const AttentionMetadata metadata;
    backend_.mla_attention({.q_lat = tensor(DType::kBF16, {k.rows, k.heads, k.outputs}),
                            .q_pe = tensor(DType::kBF16, {k.rows, k.heads, k.inputs - k.outputs}),
                            .cache = tensor(DType::kBF16, {1, kBlockSize, k.inputs}),
                            .metadata = &metadata,
                            .out = tensor(DType::kBF16, {k.rows, k.heads, k.outputs})});
  }

  void gqa() {
    const MeasuredKernel& k = kernel_;
    const AttentionMetadata metadata;
    const Tensor cache = tensor(DType::kBF16, {1, kBlockSize, k.inputs});
    backend_.gqa_attention({.q = tensor(DType::kBF16, {k.rows, k.heads, k.outputs}),
                            .k_cache = cache,
                            .v_cache = cache,
                            .metadata = &metadata,
                            .positions = {},
                            .out = tensor(DType::kBF16, {k.rows, k.heads, k.outputs})});
  }

  void vocabulary(bool top_k) {
    const MeasuredKernel& k = kernel_;
    const Tensor logits = tensor(DType::kF32, {k.rows, k.inputs});
    if (top_k)
      return backend_.top_k_log_probs({.logits = logits,
                                       .ids = tensor(DType::kI32, {k.rows, k.outputs}),
                                       .log_probs = tensor(DType::kF32, {k.rows, k.outputs})});
    SampleRowsArgs args;
    args.logits = logits;
    args.greedy = true;
    args.choices = tensor(DType::kI32, {k.rows});
    backend_.sample_rows(args);
  }

  OpCost result() const { return backend_.ops().empty() ? OpCost{} : backend_.ops().back(); }

 private:
  const MeasuredKernel& kernel_;
  CostBackend backend_;
  std::vector<Buffer> buffers_;
};

}  // namespace

OpCost cost_of(const MeasuredKernel& kernel) {
  Paper paper(kernel);
  if (kernel.op == "linear") paper.product(false);
  if (kernel.op == "head_linear") paper.product(true);
  if (kernel.op == "moe_experts") paper.experts();
  if (kernel.op == "mla_attention") paper.mla();
  if (kernel.op == "gqa_attention") paper.gqa();
  if (kernel.op == "top_k_log_probs") paper.vocabulary(true);
  if (kernel.op == "sample_rows") paper.vocabulary(false);
  OpCost cost = paper.result();
  if (cost.rows == 0) {
    cost.op = "";
    cost.rows = kernel.rows;
    cost.inputs = kernel.inputs;
    cost.outputs = kernel.outputs;
    cost.sequences = kernel.sequences;
    cost.context = static_cast<double>(kernel.sequences);
    if (kernel.op == "build_tree") cost.serial_steps = static_cast<double>(kernel.rows);
  }
  return cost;
}

}  // namespace coppice
