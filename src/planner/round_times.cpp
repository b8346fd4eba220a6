#include "planner/round_times.h"

#include <algorithm>

namespace coppice {
namespace {

// Host time of launching a captured graph, and of waiting for the GPU and reading a result back,
// measured on one H200 machine.
constexpr double kGraphLaunchUs = 2.5;
constexpr double kWaitUs = 8.5;

CostFeatures features_of_part(const CountedRound& cost, Part part, const DeviceSpec& device) {
  CostFeatures features;
  for (const RoundOp& op : cost.ops)
    if (op.part == part) features += features_of(op.cost, device);
  return features;
}

// Where a round lies on the fitted curves: rows of its verify step and positions in its caches.
struct Place {
  double rows = 0, context = 0;
};

Place place_of(const CountedRound& cost) {
  Place place;
  for (const RoundOp& op : cost.ops) {
    if (!is_verify(op.part)) continue;
    place.rows = std::max(place.rows, static_cast<double>(op.cost.rows));
    place.context = std::max(place.context, op.cost.context);
  }
  return place;
}

CostFeatures features_at(const CountedRound& cost, Part part, const DeviceSpec& device) {
  CostFeatures features = features_of_part(cost, part, device);
  const Place place = place_of(cost);
  features.rows = place.rows;
  // Only attention reads the cache; for the rest the context would split the points for nothing.
  features.context = part == Part::kAttention || part == Part::kDraft ? place.context : 0;
  return features;
}

}  // namespace

OpTime RoundTime::total() const {
  OpTime total;
  for (const OpTime& part : parts) total += part;
  return total;
}

OpTime RoundTime::verify() const {
  OpTime sum;
  for (std::size_t i = 0; i < kNumParts; ++i)
    if (is_verify(static_cast<Part>(i))) sum += parts[i];
  return sum;
}

double measured_overlap(const MeasuredRound& round, const ModelConfig& config) {
  if (round.distinct_experts <= 0 || round.rows <= 1) return 0;
  const auto k = static_cast<double>(config.num_experts_per_tok);
  const double uniform = distinct_experts(config.n_routed_experts, config.num_experts_per_tok,
                                          static_cast<double>(round.rows), 0);
  return std::clamp(1 - (round.distinct_experts - k) / (uniform - k), 0.0, 1.0);
}

CountedRound count_round(const MeasuredRound& measured, NetworkOnPaper& network, double overlap) {
  const std::int64_t budget = measured.rows / measured.batch - 1;
  CountedRound cost =
      network.round(measured.batch, measured.context, measured.drafting ? budget : 0, 1, overlap);
  if (measured.drafting || !network.has_drafter()) return cost;
  const CountedRound drafting = network.round(measured.batch, measured.context, 1, 1, overlap);
  std::erase_if(cost.ops, [](const RoundOp& op) { return op.part == Part::kCommit; });
  for (const RoundOp& op : drafting.ops)
    if (op.part == Part::kCommit) cost.ops.push_back(op);
  return cost;
}

void RoundTimes::calibrate(const std::vector<MeasuredRound>& rounds, NetworkOnPaper& network,
                           const ModelConfig& config, const DeviceSpec& device,
                           const std::string& source) {
  std::map<Part, std::vector<CostPoint>> points;
  for (const MeasuredRound& measured : rounds) {
    const CountedRound cost = count_round(measured, network, measured_overlap(measured, config));
    for (const auto& [part, us] : measured.us)
      if (us > 0) points[part].push_back({.at = features_at(cost, part, device), .us = us});
  }
  // Parts timed alone do not add up to the round: launches overlap, or parts lose their caches.
  std::map<double, std::pair<double, double>> ratios;
  for (const MeasuredRound& measured : rounds) {
    double sum = 0;
    for (const auto& [part, us] : measured.us) sum += us;
    if (sum <= 0 || measured.total_us <= 0) continue;
    auto& [ratio, count] = ratios[static_cast<double>(measured.rows)];
    ratio += measured.total_us / sum;
    count += 1;
  }
  sums_.clear();
  for (const auto& [rows, mean] : ratios) sums_.emplace(rows, mean.first / mean.second);
  fits_.clear();
  for (const auto& [part, list] : points) fits_.emplace(part, list);
  device_ = device;
  source_ = source;
}

double RoundTimes::round_over_parts(std::int64_t rows) const {
  return sums_.empty() ? 1.0 : interpolate_log(sums_, static_cast<double>(rows));
}

RoundTime RoundTimes::time(const CountedRound& cost, const DeviceSpec& device,
                           std::int64_t num_ranks, double host_us) const {
  RoundTime time;
  for (const RoundOp& op : cost.ops)
    if (!fits_.contains(op.part)) time[op.part] += kernels_.time(op.cost, device, num_ranks);
  for (const auto& [part, fit] : fits_) {
    const CostFeatures features = features_at(cost, part, device);
    if (features.launches == 0) continue;
    const CostFit::Parts parts = fit.predict(features, device.launch_us / device_.launch_us);
    time[part] = {
        .fixed_us = parts.fixed_us, .memory_us = parts.memory_us, .math_us = parts.math_us};
  }
  if (host_us < 0)
    host_us = kGraphLaunchUs * static_cast<double>(cost.num_graphs) +
              kWaitUs * static_cast<double>(cost.num_waits);
  time[Part::kHost] = {.fixed_us = host_us};
  return time;
}

}  // namespace coppice
