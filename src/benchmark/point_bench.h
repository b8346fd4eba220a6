// One point of `coppice bench round`, held open over several runs: its round, the graphs of its
// parts, and what each run found.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "benchmark/bench_round.h"
#include "benchmark/round_tracer.h"
#include "benchmark/timing.h"

namespace coppice {

// The networks under test; the drafter is null when no point drafts.
struct BenchNetworks {
  Model* model = nullptr;
  DflashModel* drafter = nullptr;
  Tensor context_features = {};  // for all points, as an engine has one: see BenchRound
  std::function<void()> meet;    // of RoundBenchOptions
  Tensor past_cache = {};  // whose bytes take the place of all others in the device's last cache
};

class PointBench {
 public:
  // `index` tells the graphs of one point from those of another. Throws Error(kUnavailable) when a
  // round has other rows than the point says.
  PointBench(RoundTracer& backend, DeviceMeter& meter, const BenchNetworks& networks,
             const RoundPoint& point, bool graph, std::int32_t index, double node_us);

  // Times the round and each part `repeats` times; the medians are this run's. The round comes
  // first: what it leaves behind is what the parts then work on.
  void run(int repeats);

  // The next runs find the point's buffers somewhere else in memory: what a kernel takes depends on
  // where they lie. Stays where it is while there is no room for a second set of buffers. The
  // backend must have forgotten the point's graphs.
  void move();

  // Medians over the runs, and every run (docs/bench.md).
  Json result() const;

 private:
  static constexpr std::size_t kWhole = kNumRoundParts, kVerify = kNumRoundParts + 1,
                               kNumSlices = kNumRoundParts + 2;
  struct Run {
    std::array<double, kNumSlices> us{};
    double wall_us = 0, committed_tokens = 0;
  };

  std::unique_ptr<BenchRound> make_round();
  void set_up();
  void enable(std::size_t slice);
  void enqueue(std::size_t slice);
  double time(std::size_t slice, int repeats);
  // As often as it takes a short part to settle and to be worth a median. `once` runs it.
  int repeats_of_part(int repeats, const std::function<void()>& once);
  double time_wall(int rounds);
  // Median over the runs.
  Spread over_runs(const std::function<double(const Run&)>& value) const;
  double alone_us(const Run& run) const;

  RoundTracer& backend_;
  DeviceMeter& meter_;
  BenchNetworks networks_;
  RoundPoint point_;
  bool alone_;  // else all ranks replay alike
  bool graph_;
  std::int32_t index_;
  double node_us_ = 0;
  // Of the whole round; of the experts timed alone, where all layers see the last one's rows.
  ExpertCounts experts_, experts_alone_;
  std::vector<double> draft_;  // log-probabilities of its best tokens, of large trees
  std::int64_t buffers_bytes_ = 0, workspace_bytes_ = 0, graph_bytes_ = 0;
  std::unique_ptr<BenchRound> round_;
  std::array<std::int64_t, kNumRoundParts> launches_{};
  std::vector<Run> runs_;
  int repeats_ = 0, places_ = 1;
};

}  // namespace coppice
