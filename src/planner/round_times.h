// From what a round asks of a GPU to the time of its parts.
#pragma once

#include <array>
#include <map>
#include <string>

#include "planner/kernel_times.h"
#include "planner/round_cost.h"

namespace coppice {

struct RoundTime {
  std::array<OpTime, kNumParts> parts;

  OpTime& operator[](Part part) { return parts[static_cast<std::size_t>(part)]; }
  const OpTime& operator[](Part part) const { return parts[static_cast<std::size_t>(part)]; }
  OpTime total() const;
  OpTime verify() const;  // all parts of the verify step
};

// A round whose parts were timed, and what they ask of the GPU.
struct MeasuredRound {
  std::int64_t batch = 0, rows = 0, context = 0;
  bool drafting = false;
  double distinct_experts = 0;  // a layer; 0: not counted
  double committed_tokens = 1;  // a sequence
  // Loads (expert_loads, backend/cost/op_cost.h) of the round, and of its experts timed alone;
  // empty: not counted.
  std::vector<double> expert_loads, expert_loads_alone;
  std::map<Part, double> us, mean_us;         // median and mean over the runs
  double total_us = 0;                        // without the host
  double total_us_min = 0, total_us_max = 0;  // over the runs
  std::map<Part, std::pair<double, double>> spread;
  // Device memory that this point took.
  double buffers_bytes = 0, workspace_bytes = 0, graph_bytes = 0;
};

// The overlap (distinct_experts, backend/cost/op_cost.h) that explains a measured count; 0 without
// one.
double measured_overlap(const MeasuredRound& round, const ModelConfig& config);

// What the router did in a measured round; with `alone`, while the experts were timed alone.
Routing measured_routing(const MeasuredRound& round, const ModelConfig& config, bool alone);

// The measured round on paper.
CountedRound count_round(const MeasuredRound& measured, NetworkOnPaper& network,
                         const Routing& routing);

// Op by op from kernels, or part by part where whole rounds were measured.
class RoundTimes {
 public:
  explicit RoundTimes(const KernelTimes& kernels) : kernels_(kernels) {}

  // Refines by measured rounds of the network on paper: each part becomes a fit of its own.
  // `network` must have the shapes that were measured.
  void calibrate(const std::vector<MeasuredRound>& rounds, NetworkOnPaper& network,
                 const ModelConfig& config, const DeviceSpec& device, const std::string& source);

  // `host_us` negative: from graph launches and waits.
  RoundTime time(const CountedRound& cost, const DeviceSpec& device, std::int64_t num_ranks,
                 double host_us = -1) const;

  // A whole round over the sum of its parts, each timed alone; 1 without measured rounds.
  double round_over_parts(std::int64_t rows) const;

  const std::string& source() const { return source_.empty() ? kernels_.source() : source_; }
  const DeviceSpec& device() const { return kernels_.device(); }

 private:
  void compare_sums(const std::vector<MeasuredRound>& rounds, NetworkOnPaper& network,
                    const ModelConfig& config);

  KernelTimes kernels_;
  std::string source_;
  DeviceSpec device_;  // of the calibration
  // Rounds that draft and those that do not differ in these by their kernels.
  using FitKey = std::pair<Part, bool>;
  static FitKey key_of(Part part, bool drafting) {
    const bool differs =
        part == Part::kTreeBuild || part == Part::kTreeCompile || part == Part::kCommit;
    return {part, differs && drafting};
  }
  // `rate`: what the part reaches of the read rate; its features are those of a device that reads
  // so.
  struct PartFit {
    CostFit fit;
    double rate = 1;
  };
  std::map<FitKey, PartFit> fits_;
  std::map<double, double> sums_;  // by rows
};

}  // namespace coppice
