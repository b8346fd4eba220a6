#include "benchmark/point_bench.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace coppice {
namespace {

Json as_json(const std::vector<double>& values) {
  Json array = Json::array();
  for (const double value : values) array.push_back(value);
  return array;
}

constexpr std::int32_t kGraphKind = 9100;
// Parts of one launch are timed as so many in a row: a graph of one kernel is mostly the graph.
constexpr int kCallsOfOne = 8;
// Of a part's replays before it is timed, and while it is: shorter, what ran before them would
// still be seen in their clocks.
constexpr double kSettleUs = 1000, kLeastUs = 3000;
constexpr int kMostReplays = 200;
// Parts in the order they are timed in: what draws little power directly behind the rounds, at
// their clocks, products of many rows last. Replayed by themselves these make clocks sink by a
// quarter for some 20 ms, and what is then timed is slower (docs/results/planner-h200.md,
// "Commits").
constexpr std::array kOrder = {RoundPart::kTreeBuild, RoundPart::kCompile, RoundPart::kSampling,
                               RoundPart::kCommit,    RoundPart::kDraft,   RoundPart::kAttention,
                               RoundPart::kExperts,   RoundPart::kNorms,   RoundPart::kRanks,
                               RoundPart::kDense,     RoundPart::kLmHead};
static_assert(kOrder.size() == kNumRoundParts);
// Nodes of a tree whose time depends on what is drafted; digits that its log-probabilities keep.
constexpr std::int64_t kLargeTree = 33;
constexpr double kDraftDigits = 1e5;

// Parts that read weights or caches, which no round finds in the cache of the device: what the last
// replay left there has to go. The others work on what the part before them has just written.
bool reads_memory(RoundPart part) {
  switch (part) {
    case RoundPart::kDraft:
    case RoundPart::kAttention:
    case RoundPart::kExperts:
    case RoundPart::kDense:
    case RoundPart::kLmHead:
    case RoundPart::kCommit:
      return true;
    default:
      return false;
  }
}

}  // namespace

PointBench::PointBench(RoundTracer& backend, DeviceMeter& meter, const BenchNetworks& networks,
                       const RoundPoint& point, bool graph, std::int32_t index, double node_us)
    : backend_(backend),
      meter_(meter),
      networks_(networks),
      point_(point),
      alone_(!networks.meet && backend.device() != Device::kCpu),
      graph_(graph),
      index_(index),
      node_us_(node_us) {
  const std::int64_t before = meter.facts().free_bytes;
  round_ = make_round();
  const std::int64_t after = meter.facts().free_bytes;
  buffers_bytes_ = before - after;
  if (networks.meet) networks.meet();  // no rank allocates while another runs
  set_up();
}

std::unique_ptr<BenchRound> PointBench::make_round() {
  return std::make_unique<BenchRound>(backend_, meter_, *networks_.model, networks_.drafter,
                                      networks_.context_features, point_);
}

void PointBench::move() {
  // Memory that is asked for in the same sizes comes back in the same places: others lie between
  // for as long as it takes, one of some pages and one within a page.
  constexpr std::size_t kPage = 2 << 20, kMostPages = 16, kStep = 4096;
  std::seed_seq seed{index_, places_};
  std::minstd_rand random(seed);
  try {
    const Buffer pages = backend_.allocate((1 + random() % kMostPages) * kPage);
    const Buffer within = backend_.allocate((1 + random() % (kPage / 2 / kStep)) * kStep);
    round_ = make_round();  // before the old one goes
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfMemory) throw;
    return;
  }
  places_ += 1;
}

void PointBench::set_up() {
  std::int64_t before = meter_.facts().free_bytes;
  const auto grown = [&] {
    backend_.synchronize();
    const std::int64_t now = meter_.facts().free_bytes;
    return std::exchange(before, now) - now;
  };
  enable(kWhole);
  enqueue(kWhole);  // kernels take their workspaces
  workspace_bytes_ = grown();
  backend_.start_counting();
  enqueue(kWhole);
  experts_ = backend_.stop_counting();
  if (point_.budget() >= kLargeTree)
    for (const float value : backend_.draft())
      draft_.push_back(std::round(value * kDraftDigits) / kDraftDigits);
  backend_.start_counting();
  enable(static_cast<std::size_t>(RoundPart::kExperts));
  enqueue(kWhole);
  experts_alone_ = backend_.stop_counting();
  const std::int64_t rows = round_->rows_used();
  if (rows != point_.rows)
    throw Error(ErrorKind::kUnavailable,
                "a round of " + std::to_string(point_.rows) + " rows had " + std::to_string(rows));
  for (std::size_t part = 0; part < kNumRoundParts; ++part) {
    enable(part);
    launches_[part] = meter_.count_launches([&] { enqueue(part); });
  }
  if (!graph_) return;
  grown();
  time(kWhole, 1);
  graph_bytes_ = grown();
}

void PointBench::enable(std::size_t slice) {
  if (slice == kWhole) return backend_.enable_all();
  if (slice == kVerify) return backend_.enable_only(is_verify);
  backend_.enable_only([slice](RoundPart part) { return part == static_cast<RoundPart>(slice); });
}

void PointBench::enqueue(std::size_t slice) {
  const int calls = slice < kNumRoundParts && launches_[slice] == 1 ? kCallsOfOne : 1;
  for (int i = 0; i < calls; ++i) {
    backend_.begin();
    round_->run();
  }
}

double PointBench::time(std::size_t slice, int repeats) {
  const bool is_part = slice < kNumRoundParts;
  if (is_part && launches_[slice] == 0 && backend_.device() != Device::kCpu) return 0;
  const double calls = is_part && launches_[slice] == 1 ? kCallsOfOne : 1;
  enable(slice);
  round_->reset();
  const auto once = [&] {
    if (!graph_) return enqueue(slice);
    backend_.run_graph({.kind = kGraphKind,
                        .batch = index_,
                        .rows = static_cast<std::int32_t>(slice),
                        .variant = 0},
                       [&] { enqueue(slice); });
  };
  once();  // captures it first
  if (is_part && alone_ && graph_) repeats = repeats_of_part(repeats, once);
  const bool cold =
      is_part && !networks_.past_cache.empty() && reads_memory(static_cast<RoundPart>(slice));
  // One behind the other: a device that idles in between changes its clocks.
  constexpr int kAtOnce = 32;
  std::vector<double> us;
  for (int done = 0; done < repeats;) {
    const int count = std::min(kAtOnce, repeats - done);
    for (int i = 0; i < count; ++i) {
      if (cold) meter_.read(networks_.past_cache);
      meter_.stamp(2 * i);
      once();
      meter_.stamp(2 * i + 1);
    }
    for (int i = 0; i < count; ++i) us.push_back(meter_.microseconds(2 * i, 2 * i + 1) / calls);
    done += count;
  }
  return spread_of(std::move(us)).median;
}

int PointBench::repeats_of_part(int repeats, const std::function<void()>& once) {
  meter_.stamp(0);
  once();
  meter_.stamp(1);
  const double us = std::max(meter_.microseconds(0, 1), 1.0);
  const auto replays = [&](double wanted_us) {
    return static_cast<int>(std::min<double>(wanted_us / us, kMostReplays));
  };
  for (int i = replays(kSettleUs); i > 0; --i) once();
  return std::max(repeats, replays(kLeastUs));
}

// As the engine goes: a round is enqueued before the results of the one before it are waited for.
double PointBench::time_wall(int rounds) {
  enable(kWhole);
  round_->reset();
  const SteadyClock clock;
  const auto launch = [&] {
    if (graph_)
      backend_.run_graph({.kind = kGraphKind,
                          .batch = index_,
                          .rows = static_cast<std::int32_t>(kWhole),
                          .variant = 0},
                         [&] { enqueue(kWhole); });
    else
      enqueue(kWhole);
    return round_->start_results();
  };
  std::int64_t ahead = launch();
  round_->finish_results(ahead);
  ahead = launch();
  const std::int64_t start = clock.now_ns();
  for (int i = 0; i < rounds; ++i) {
    const std::int64_t next = launch();
    round_->finish_results(std::exchange(ahead, next));
  }
  const std::int64_t end = clock.now_ns();
  round_->finish_results(ahead);
  return static_cast<double>(end - start) * 1e-3 / rounds;
}

void PointBench::run(int repeats) {
  repeats_ = repeats;
  Run run;
  // Rounds follow rounds: what parts before them do to power and clocks, or an idle device at the
  // start, is over by then. By the clock: a first round takes long and says nothing of the others.
  constexpr std::int64_t kRecoverNs = 40'000'000;
  const SteadyClock clock;
  const std::int64_t start = clock.now_ns();
  do {
    time(kWhole, 2);
  } while (alone_ && clock.now_ns() - start < kRecoverNs);
  run.us[kWhole] = time(kWhole, repeats);
  run.wall_us = time_wall(repeats);
  run.us[kVerify] = time(kVerify, repeats);
  for (const RoundPart part : kOrder) {
    const auto slice = static_cast<std::size_t>(part);
    run.us[slice] = time(slice, repeats);
    if (part == RoundPart::kCommit) run.committed_tokens = round_->committed_tokens();
  }
  backend_.enable_all();
  runs_.push_back(run);
}

Spread PointBench::over_runs(const std::function<double(const Run&)>& value) const {
  std::vector<double> values;
  values.reserve(runs_.size());
  for (const Run& run : runs_) values.push_back(value(run));
  return spread_of(std::move(values));
}

// What the kernels take without the launches between them.
double PointBench::alone_us(const Run& run) const {
  double sum = 0;
  for (std::size_t part = 0; part < kNumRoundParts; ++part)
    sum += std::max(run.us[part] - static_cast<double>(launches_[part]) * node_us_, 0.0);
  return sum;
}

Json PointBench::result() const {
  Json stages = Json::object(), verify = Json::object(), counts = Json::object(),
       spread = Json::object(), by_run = Json::object();
  const auto add = [&](Json& group, const char* name, const auto& value) {
    const Spread us = over_runs(value);
    group[name] = us.median;
    spread[name] = Json::array({us.min, us.max});
    std::vector<double> values;
    std::ranges::transform(runs_, std::back_inserter(values), value);
    by_run[name] = as_json(values);
  };
  for (std::size_t i = 0; i < kNumRoundParts; ++i) {
    const auto part = static_cast<RoundPart>(i);
    add(is_verify(part) ? verify : stages, name_of(part),
        [i](const Run& run) { return run.us[i]; });
    counts[name_of(part)] = launches_[i];
  }
  add(stages, "verify", [](const Run& run) { return run.us[kVerify]; });
  add(stages, "host", [](const Run& run) { return std::max(run.wall_us - run.us[kWhole], 0.0); });
  const Spread total = over_runs([](const Run& run) { return run.us[kWhole]; });
  const Spread wall = over_runs([](const Run& run) { return run.wall_us; });
  const double alone = over_runs([this](const Run& run) { return alone_us(run); }).median;
  return Json::object(
      {{"context", point_.context},
       {"batch", point_.batch},
       {"rows", point_.rows},
       {"mode", graph_ ? "graph" : "eager"},
       {"drafting", point_.drafting()},
       {"runs", std::ssize(runs_)},
       {"repeats", repeats_},
       {"places", places_},
       {"total_us", total.median},
       {"total_us_min", total.min},
       {"total_us_max", total.max},
       {"wall_us", wall.median},
       {"wall_us_min", wall.min},
       {"wall_us_max", wall.max},
       {"stages", stages},
       {"verify", verify},
       {"spread", spread},
       {"by_run", by_run},
       {"launches", counts},
       {"kernels_alone_us", alone},
       {"overhead", 1 - alone / total.median},
       {"distinct_experts", std::reduce(experts_.loads.begin(), experts_.loads.end())},
       {"distinct_experts_by_layer", as_json(experts_.distinct)},
       {"expert_loads", as_json(experts_.loads)},
       {"expert_loads_alone", as_json(experts_alone_.loads)},
       {"draft_log_probs", as_json(draft_)},
       {"committed_tokens", over_runs([](const Run& run) { return run.committed_tokens; }).median},
       {"cache_and_buffers_bytes", buffers_bytes_},
       {"workspace_bytes", workspace_bytes_},
       {"graph_bytes", graph_bytes_}});
}

}  // namespace coppice
