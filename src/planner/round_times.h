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
  std::map<Part, double> us;
  double total_us = 0;  // without the host
};

// The overlap (distinct_experts, backend/cost/op_cost.h) that explains a measured count; 0 without
// one.
double measured_overlap(const MeasuredRound& round, const ModelConfig& config);

// The measured round on paper. The benchmark takes the drafter's context in after every round, the
// engine after a plain one only when it drafts again.
CountedRound count_round(const MeasuredRound& measured, NetworkOnPaper& network, double overlap);

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
  KernelTimes kernels_;
  std::string source_;
  DeviceSpec device_;  // of the calibration
  std::map<Part, CostFit> fits_;
  std::map<double, double> sums_;  // by rows
};

}  // namespace coppice
