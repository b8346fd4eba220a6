// coppice bench round: one decode round by stage, on random weights of a network's exact shapes.
// docs/bench.md says how a stage is timed and what the JSON holds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/device_meter.h"
#include "io/json.h"

namespace coppice {

struct RoundBenchOptions {
  bool tiny = false;  // the small model's widths on any device; CPUs always
  std::int64_t num_layers = 61;
  std::int64_t num_ranks = 1;  // widths of one of so many tensor-parallel ranks
  // Where all of them run, each calling run_round_bench on a thread of its own: this one, and what
  // returns when all have called it. Sums and gathers between them are then part of the round.
  // Without `meet` one rank runs alone and they are left out.
  std::int64_t rank = 0;
  std::function<void()> meet;
  std::vector<std::int64_t> contexts = {4096};  // positions in the cache, of every sequence
  std::vector<std::int64_t> rows = {1, 8, 17};  // of the verify step, over all sequences
  std::vector<std::int64_t> batches = {1};
  bool eager = false;  // also without graphs
  int repeats = 11;
  // More than one: all points stay open together, and are gone through so many times in a shuffled
  // order; results are medians over these runs. Without `eager`.
  int runs = 1;
  Json peers = {};  // the file of bench/peers; null: none
  std::string command;
};

struct RoundBenchObserver {
  std::function<void(const std::string&)> progress = [](const std::string&) {};  // what happens now
  std::function<void(const std::string&)> line = [](const std::string&) {};      // of the table
  std::function<void(const Json&)> report = [](const Json&) {};  // of the points so far, after each
};

// `meter` is that of the device behind `backend`. Throws Error(kOutOfMemory) with the numbers
// before it allocates what does not fit, and Error(kInvalidArgument) for rows that are no multiple
// of the batch, or more than the cache has room for behind the context.
Json run_round_bench(std::unique_ptr<Backend> backend, DeviceMeter& meter,
                     const RoundBenchOptions& options, const RoundBenchObserver& observer);

}  // namespace coppice
