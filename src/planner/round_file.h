// Reads what `coppice bench round --json` writes (docs/bench.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/round_times.h"

namespace coppice {

struct RoundFile {
  DeviceSpec device;
  ModelConfig target;  // the widths of the rank that was measured, as a network of one rank
  std::optional<DflashConfig> drafter;
  std::int64_t fc_ranks = 1;          // that its fc was split over
  std::vector<MeasuredRound> rounds;  // captured ones only
  double weights_bytes = 0, drafter_bytes = 0;
  std::int64_t runs = 1;
  bool has_moe_block = false;  // router and shared expert were timed as part of the experts
  std::string commit, date;
};

// Throws Error naming the file and field.
RoundFile read_round_file(const std::string& path);

// Its network on paper, large enough for its rounds.
NetworkOnPaper network_of(const RoundFile& file);

// From a file of `bench kernels` or of `bench round`, told by its schema.
RoundTimes times_from_file(const std::string& path);

}  // namespace coppice
