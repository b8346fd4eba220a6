#include "planner/round_times.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

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

DeviceSpec at_rate(DeviceSpec device, double rate) {
  device.read_tb_s *= rate;
  return device;
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
  const bool has_forms = part == Part::kAttention || part == Part::kDense ||
                         part == Part::kLmHead || part == Part::kTreeBuild;
  if (!has_forms) features.form = 0;
  // A small tree and one by rounds, which is all that a calibration has, do not tell what a node
  // takes: as alone (docs/results/tree-h200.md), with clocks of rounds.
  constexpr double kTreeSteps = 2.7;
  if (part == Part::kTreeBuild)
    features.math_us += kTreeSteps * std::exchange(features.serial_us, 0.0);
  return features;
}

// What a part takes: the median of its runs. A commit takes one of two times, by its place in
// memory, and which one most places have says nothing; a tree keeps one multiprocessor busy for a
// few microseconds, and slower runs have the clock that the point before them left.
double typical_us(const MeasuredRound& measured, Part part) {
  if (part == Part::kCommit) return measured.mean_us.at(part);
  const auto spread = measured.spread.find(part);
  const bool of_tree = part == Part::kTreeBuild || part == Part::kTreeCompile;
  return of_tree && spread != measured.spread.end() ? spread->second.first : measured.us.at(part);
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

Routing measured_routing(const MeasuredRound& round, const ModelConfig& config, bool alone) {
  return {.overlap = measured_overlap(round, config),
          .loads = alone ? round.expert_loads_alone : round.expert_loads};
}

CountedRound count_round(const MeasuredRound& measured, NetworkOnPaper& network,
                         const Routing& routing) {
  const std::int64_t budget = measured.rows / measured.batch - 1;
  return network.round(measured.batch, measured.context, measured.drafting ? budget : 0,
                       measured.committed_tokens, routing);
}

void RoundTimes::calibrate(const std::vector<MeasuredRound>& rounds, NetworkOnPaper& network,
                           const ModelConfig& config, const DeviceSpec& device,
                           const std::string& source) {
  struct Timed {
    std::shared_ptr<const CountedRound> cost;
    double us;
  };
  std::map<FitKey, std::vector<Timed>> timed;
  for (const MeasuredRound& measured : rounds) {
    const auto cost = std::make_shared<const CountedRound>(
        count_round(measured, network, measured_routing(measured, config, true)));
    for (const auto& entry : measured.us) {
      const Part part = entry.first;
      const double us = typical_us(measured, part);
      if (us > 0) timed[key_of(part, measured.drafting)].push_back({cost, us});
    }
  }
  sums_.clear();
  fits_.clear();
  device_ = device;
  source_ = source;
  for (const auto& entry : timed) {
    const auto fit_at = [&](double rate) {
      std::vector<CostPoint> points;
      for (const Timed& point : entry.second)
        points.push_back({.at = features_at(*point.cost, entry.first.first, at_rate(device, rate)),
                          .us = point.us});
      return CostFit(points);
    };
    // Arithmetic hides behind the bytes as they arrive, so that rate is found first; but in
    // attention, whose steps do not.
    constexpr double kLowest = 0.7;  // below it something else is slow
    const double rate =
        entry.first.first == Part::kAttention ? 1.0 : std::max(1 / fit_at(1).stream(), kLowest);
    fits_.emplace(entry.first, PartFit{.fit = fit_at(rate), .rate = rate});
  }
  compare_sums(rounds, network, config);
}

// Parts timed alone do not add up to the round: launches overlap, or parts lose their caches.
void RoundTimes::compare_sums(const std::vector<MeasuredRound>& rounds, NetworkOnPaper& network,
                              const ModelConfig& config) {
  std::map<double, std::pair<double, double>> ratios;
  for (const MeasuredRound& measured : rounds) {
    if (measured.us.empty() || measured.total_us <= 0) continue;
    const Routing routing = measured_routing(measured, config, false);
    const double sum = time(count_round(measured, network, routing), device_, 1, 0).total().us();
    auto& [ratio, count] = ratios[static_cast<double>(measured.rows)];
    ratio += measured.total_us / sum;
    count += 1;
  }
  for (const auto& [rows, mean] : ratios) sums_.emplace(rows, mean.first / mean.second);
}

double RoundTimes::round_over_parts(std::int64_t rows) const {
  // Beyond the rows that were measured a round takes what its parts take.
  if (sums_.empty() || static_cast<double>(rows) > sums_.rbegin()->first) return 1.0;
  return interpolate_log(sums_, static_cast<double>(rows));
}

RoundTime RoundTimes::time(const CountedRound& cost, const DeviceSpec& device,
                           std::int64_t num_ranks, double host_us) const {
  RoundTime time;
  const bool drafting =
      std::ranges::any_of(cost.ops, [](const RoundOp& op) { return op.part == Part::kDraft; });
  const auto fit_of = [&](Part part) {
    const auto found = fits_.find(key_of(part, drafting));
    return found == fits_.end() ? nullptr : &found->second;
  };
  for (const RoundOp& op : cost.ops)
    if (fit_of(op.part) == nullptr) time[op.part] += kernels_.time(op.cost, device, num_ranks);
  for (std::size_t i = 0; i < kNumParts; ++i) {
    const auto part = static_cast<Part>(i);
    const PartFit* const fit = fit_of(part);
    if (fit == nullptr) continue;
    const CostFeatures features = features_at(cost, part, at_rate(device, fit->rate));
    if (features.launches == 0) continue;
    const CostFit::Parts parts = fit->fit.predict(features, device.launch_us / device_.launch_us);
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
