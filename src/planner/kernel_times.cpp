#include "planner/kernel_times.h"

#include <algorithm>

#include "backend/cost/op_cost.h"

namespace coppice {
namespace {

constexpr double kL2Speedup = 2.5;
// Of one INT4 weight on its way into a tensor core: unpack, scale, load, loop. Estimated from the
// experts' kernel; no GPU of the table is limited by it at this count.
constexpr double kInstructionsPerWeight = 2.0;
constexpr double kNodeUs = 0.1;  // of one serial step
constexpr double kLanes = 128;   // instructions a clock and multiprocessor
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

CostFeatures features_of(const OpCost& cost, const DeviceSpec& device) {
  const bool in_cache = cost.activation_bytes < device.l2_mb * 1e6 / 2;
  const double bytes =
      cost.weight_bytes + cost.kv_bytes + cost.activation_bytes / (in_cache ? kL2Speedup : 1.0);
  const double stream_us = bytes / device.read_tb_s * 1e-6;
  const double convert_us = cost.packed_weights * kInstructionsPerWeight /
                            (static_cast<double>(device.num_sms) * device.clock_ghz * kLanes) *
                            1e-3;
  return {.launches = static_cast<double>(cost.launches),
          .memory_us = std::max(stream_us, convert_us),
          .math_us = cost.flops / device.bf16_reached * 1e-6 + cost.serial_steps * kNodeUs,

          .rows = static_cast<double>(cost.rows),
          .context = cost.context};
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
    const double us = all_reduce_us(device.all_reduce, num_ranks, cost.message_bytes);
    const double empty = all_reduce_us(device.all_reduce, num_ranks, 0);
    return {.fixed_us = empty, .link_us = us - empty};
  }
  const CostFeatures features = features_of(cost, device);
  const CostFit* const fit = find(cost);
  if (fit == nullptr)
    return {.fixed_us = kUnmeasuredLaunches * device.launch_us * features.launches,
            .memory_us = features.memory_us,
            .math_us = features.math_us};
  const CostFit::Parts parts = fit->predict(features, device.launch_us / device_.launch_us);
  return {.fixed_us = parts.fixed_us, .memory_us = parts.memory_us, .math_us = parts.math_us};
}

}  // namespace coppice
