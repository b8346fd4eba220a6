#include "planner/kernel_times.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cost/op_cost.h"
#include "kernels/gemm/skinny_gemm_config.h"
#include "kernels/moe/moe_experts_config.h"
#include "kernels/tree/build_tree_config.h"
#include "planner/kernel_schedule.h"

namespace coppice {
namespace {

constexpr double kL2Speedup = 1.4;       // over memory: 6.5 TB/s on an H200
constexpr double kActivationRate = 0.8;  // of the read rate: plain loads and stores
constexpr double kCopyRate = 0.37;  // of the read rate: one word a thread and nothing behind it
constexpr std::int64_t kMergeRows = 64;  // from here on partial results are merged by columns
// Products grow with rows up to here, and by a fifth of that up to twice as many; beyond, their
// tiles are counted.
constexpr std::int64_t kTileRows = 32;
constexpr double kBeyondTile = 0.2;
// Row by row work takes no longer than for one row up to here, and grows up to there.
constexpr std::int64_t kFewRows = 14, kManyRows = 110;
constexpr double kInstructionsPerWeight = 1.75;  // of an INT4 weight: unpack, scale, load, loop
constexpr double kProductWeights = 256;          // of one m16n8k16
// Clocks of such a product on a multiprocessor: where two blocks share it, and where one block with
// units of 16 rows has it to itself and waits for its own results. The second is from the kernel
// alone at 128 to 1024 rows of independent choices (docs/results/moe-h200.md).
constexpr double kProductClocks = 1.6, kProductClocksAlone = 4.4;
constexpr double kNodeUs = 0.05;  // of one serial step
constexpr double kLanes = 128;    // instructions a clock and multiprocessor
constexpr std::string_view kMlaPlan = "plan_mla_attention";
// Kernels without a measurement: so many launches' worth of latency.
constexpr double kUnmeasuredLaunches = 2.0;

std::string shape_key(const std::string& op, const OpCost& cost) {
  return op + " " + std::to_string(cost.outputs) + " " + std::to_string(cost.inputs) + " " +
         std::to_string(cost.heads);
}

}  // namespace

const char* name_of(Limit limit) {
  switch (limit) {
    case Limit::kFixed:
      return "fixed time";
    case Limit::kMemory:
      return "memory";
    case Limit::kMath:
      return "arithmetic";
    case Limit::kLink:
      return "links";
  }
  return "?";
}

Limit OpTime::limit() const {
  const double most = std::max({fixed_us, memory_us, math_us, link_us});
  if (most == memory_us) return Limit::kMemory;
  if (most == math_us) return Limit::kMath;
  return most == link_us ? Limit::kLink : Limit::kFixed;
}

OpTime& OpTime::operator+=(const OpTime& other) {
  fixed_us += other.fixed_us;
  memory_us += other.memory_us;
  math_us += other.math_us;
  link_us += other.link_us;
  return *this;
}

namespace {

// Bytes that a step leaves in the L2 cache for the next: all up to half of it, none beyond it
// whole.
double share_in_cache(double bytes, const DeviceSpec& device) {
  return std::clamp(2 - bytes / (device.l2_mb * 1e6 / 2), 0.0, 1.0);
}

double activation_us(const OpCost& cost, const DeviceSpec& device) {
  // Copies start from rows that were written long ago.
  const std::string_view op = cost.op;
  const bool is_copy = op == "gather_rows" || op == "embed";
  const double rate = device.read_tb_s * (is_copy ? kCopyRate : kActivationRate);
  const double from_memory = cost.activation_bytes / rate * 1e-6;
  const double cached = is_copy ? 0 : share_in_cache(cost.activation_bytes, device);
  // Row by row work on rows in the cache takes its launches, and what spreading over the GPU takes.
  const double from_cache = cost.kind == CostKind::kRows ? 0 : from_memory / kL2Speedup;
  return cached * from_cache + (1 - cached) * from_memory;
}

// INT4 weights on their way into tensor cores: every unit of rows converts them and every eight of
// its rows multiply them.
double packed_us(const OpCost& cost, const DeviceSpec& device) {
  const bool alone = kernels::moe_experts_columns(static_cast<int>(cost.rows)) > 1;
  const double clocks =
      cost.unit_weights * kInstructionsPerWeight / kLanes +
      cost.column_weights * (alone ? kProductClocksAlone : kProductClocks) / kProductWeights;
  return clocks / (static_cast<double>(device.num_sms) * device.clock_ghz) * 1e-3;
}

// What that adds to the bytes: where both take about as long, neither hides the other whole.
double packed_excess_us(const OpCost& cost, double memory_us, const DeviceSpec& device) {
  constexpr double kPower = 6;
  const double us = packed_us(cost, device);
  return std::pow(std::pow(memory_us, kPower) + std::pow(us, kPower), 1 / kPower) - memory_us;
}

// The form on tensor cores; others are estimated by their bytes.
bool has_mla_schedule(const OpCost& cost) {
  return std::string_view(cost.op) == "mla_attention" && cost.heads <= 64 && cost.inputs == 576 &&
         cost.sequences > 0;
}

// The multiprocessor that is busy longest decides, and what is merged after it. Keys come while
// others are multiplied; only where so many are brought at the same time that memory is behind does
// a step wait for them.
void add_mla(const OpCost& cost, const DeviceSpec& device, CostFeatures& features) {
  const std::int64_t sequences = cost.sequences;
  const MlaSchedule schedule =
      mla_schedule(cost.heads, sequences,
                   std::max<std::int64_t>(static_cast<std::int64_t>(cost.live_rows) / sequences, 1),
                   static_cast<std::int64_t>(cost.context) / sequences, device.num_sms);
  // Partial results leave while others are computed; what merges them waits for its reads.
  constexpr double kBytesOfStep = 64 * 576 * 2, kBytesOfPartial = 64 * 512 * 2;
  constexpr double kStepClocks = 3400;   // docs/results/mla-h200.md
  constexpr double kLateLaunches = 1.5;  // what a block that finds no room before adds
  const double step_us = kStepClocks / device.clock_ghz * 1e-3;
  const double keys_us = kBytesOfStep / device.read_tb_s * 1e-6;  // of a step, alone
  // A multiprocessor brings the keys of one fragment at a time, however many it does in turn.
  const auto streams = static_cast<double>(std::min(schedule.streams, device.num_sms));
  const double wait_us = std::max(streams * keys_us - step_us, 0.0);
  features.launches += kLateLaunches * schedule.late;
  features.spread = 0;
  features.steps_us = schedule.chain * step_us + schedule.burst * keys_us;
  features.merges = schedule.merges;
  features.memory_us = static_cast<double>(schedule.loads) * wait_us +
                       (cost.activation_bytes +
                        kBytesOfPartial * static_cast<double>(schedule.partials) / kL2Speedup) /
                           device.read_tb_s * 1e-6;
  features.form = cost.rows == 1 ? 1 : 0;
}

// The plain form of other shapes: a block for each row and head goes through the keys one by one
// (docs/results/data/*-h200-planner-tiny.json).
double plain_mla_us(const OpCost& cost, const DeviceSpec& device) {
  constexpr double kKeyClocks = 650, kBlocksOfSm = 2;
  const double keys = cost.context / static_cast<double>(std::max<std::int64_t>(cost.sequences, 1));
  const double blocks = cost.live_rows * static_cast<double>(cost.heads);
  const double turns = std::max(blocks / (kBlocksOfSm * static_cast<double>(device.num_sms)), 1.0);
  return turns * keys * kKeyClocks / device.clock_ghz * 1e-3;
}

// What grows with rows beside bytes and arithmetic: blocks, up to one on each multiprocessor, and
// the tiles of products, which are counted beyond 64 rows. Trees count their serial steps.
double spread_of(const OpCost& cost, const DeviceSpec& device) {
  switch (cost.kind) {
    case CostKind::kTree:
    case CostKind::kCommit:
      return 0;
    case CostKind::kAttention:
      return static_cast<double>(std::min(cost.rows, kMergeRows));
    case CostKind::kDense:
      return static_cast<double>(std::min(cost.rows, kTileRows)) +
             kBeyondTile *
                 static_cast<double>(std::clamp(cost.rows - kTileRows, std::int64_t{0}, kTileRows));
    case CostKind::kRows:
      return static_cast<double>(
          std::max<std::int64_t>(std::min(cost.rows, kManyRows) - kFewRows, 1));
    default:
      return static_cast<double>(std::min(cost.rows, device.num_sms));
  }
}

}  // namespace

CostFeatures features_of(const OpCost& cost, const DeviceSpec& device) {
  const auto launches = static_cast<double>(cost.launches);
  CostFeatures features{.launches = launches,
                        .spread = launches * spread_of(cost, device),
                        .memory_us = (cost.weight_bytes + cost.kv_bytes) / device.read_tb_s * 1e-6 +
                                     activation_us(cost, device),
                        .rows = static_cast<double>(cost.rows),
                        .context = cost.context};
  if (has_mla_schedule(cost)) {
    add_mla(cost, device, features);
    return features;
  }
  if (cost.op == kMlaPlan) {
    features.spread = 0;
    features.math_us = cost.serial_steps * kNodeUs;
    return features;
  }
  ProductTime product = {.multiply_us = cost.flops / device.bf16_reached * 1e-6};
  if (cost.kind == CostKind::kDense) {
    const std::int64_t heads = std::max<std::int64_t>(cost.heads, 1);
    product = product_time(cost.rows, heads, cost.outputs / heads, cost.inputs, device);
    // The narrowest tiles leave half of the copies under way that wider ones have.
    features.form = cost.rows > kernels::kSkinnyColumns[0] ? 1 : 0;
  }
  features.math_us = std::max(0.0, product.multiply_us - features.memory_us) + product.finish_us;
  if (std::string_view(cost.op) == "mla_attention") features.math_us = plain_mla_us(cost, device);
  if (cost.packed_weights > 0)
    features.math_us =
        std::max(features.math_us, packed_excess_us(cost, features.memory_us, device));
  if (std::string_view(cost.op) == "build_tree")
    features.form = cost.rows > kernels::kStepwiseBudget ? 1 : 0;
  // Nodes of a tree are fitted; what a fused kernel does in turn is a constant of that kernel.
  const bool constant = cost.in_mla_queries || std::string_view(cost.op) == "compile_tree";
  (constant ? features.math_us : features.serial_us) += cost.serial_steps * kNodeUs;
  return features;
}

KernelTimes::KernelTimes(std::vector<MeasuredKernel> measured, const DeviceSpec& device,
                         std::string source)
    : measured_(std::move(measured)), device_(device), source_(std::move(source)) {
  std::map<std::string, std::vector<CostPoint>> by_shape, by_op;
  for (const MeasuredKernel& kernel : measured_) {
    const OpCost cost = cost_of(kernel);
    const CostPoint point{.at = features_of(cost, device_), .us = kernel.us};
    by_shape[shape_key(kernel.op, cost)].push_back(point);
    by_op[kernel.op].push_back(point);
  }
  constexpr std::size_t kEnough = 3;
  for (const auto& [key, points] : by_shape)
    if (points.size() >= kEnough) by_shape_.emplace(key, points);
  for (const auto& [op, points] : by_op) by_op_.emplace(op, points);
}

const CostFit* KernelTimes::find(const OpCost& cost) const {
  const auto shape = by_shape_.find(shape_key(cost.op, cost));
  if (shape != by_shape_.end()) return &shape->second;
  const auto op = by_op_.find(cost.op);
  return op == by_op_.end() ? nullptr : &op->second;
}

OpTime KernelTimes::time(const OpCost& cost, const DeviceSpec& device,
                         std::int64_t num_ranks) const {
  if (cost.kind == CostKind::kCollective) {
    PeerSumModel free_link = device.peer_sum;
    free_link.sent_gb_s = std::numeric_limits<double>::infinity();
    const double fixed = peer_sum_us(free_link, num_ranks, cost.message_bytes);
    return {.fixed_us = fixed,
            .link_us = peer_sum_us(device.peer_sum, num_ranks, cost.message_bytes) - fixed};
  }
  const CostFeatures features = features_of(cost, device);
  const CostFit* const fit = find(cost);
  if (fit == nullptr)
    return {.fixed_us = kUnmeasuredLaunches * device.launch_us * features.launches,
            .memory_us = features.memory_us,
            .math_us = features.math_us + features.steps_us + features.serial_us};
  const CostFit::Parts parts = fit->predict(features, device.launch_us / device_.launch_us);
  return {.fixed_us = parts.fixed_us, .memory_us = parts.memory_us, .math_us = parts.math_us};
}

}  // namespace coppice
