// How kernels spread a step over a GPU, asked of the functions that their launchers ask.
#pragma once

#include "planner/device_spec.h"

namespace coppice {

// The MLA attention kernel: the cut that its planning kernel makes (kernels/mla/mla_plan.cuh), for
// sequences alike in context and rows.
struct MlaSchedule {
  std::int64_t tiles = 0;
  std::int64_t fragments = 0;  // parts of tiles, each done by one multiprocessor
  std::int64_t rounds = 0;     // fragments that one multiprocessor does, one after the other
  std::int64_t steps = 0;      // of 64 keys, of the longest fragment
  std::int64_t chunks = 0;     // of the longest fragment, each with a partial result
  std::int64_t partials = 0;   // results that are merged afterwards

  // Steps one after the other, with what a chunk's result and a further fragment cost in steps.
  double critical_steps() const;
  // Partial results of a tile, one after the other in the merge that follows.
  double critical_merges() const {
    const std::int64_t merges = (partials + tiles - 1) / tiles;
    return static_cast<double>(merges);
  }
};

// Rows are those of one sequence; `num_heads` at most 64.
MlaSchedule mla_schedule(std::int64_t num_heads, std::int64_t sequences, std::int64_t rows,
                         std::int64_t context, std::int64_t num_sms);

// A product of `rows` rows if its memory were free: tiles in waves over the GPU. `outputs` are
// those of a head.
struct ProductTime {
  double multiply_us = 0;  // each wave as long as its arithmetic or its copies out of the L2 cache
  double finish_us = 0;    // the sums of the tiles of a multiprocessor leave it, one by one
};
ProductTime product_time(std::int64_t rows, std::int64_t num_heads, std::int64_t outputs,
                         std::int64_t inputs, const DeviceSpec& device);

}  // namespace coppice
