// How kernels spread a step over a GPU, asked of the functions that their launchers ask.
#pragma once

#include "planner/device_spec.h"

namespace coppice {

// The MLA attention kernel and the merging kernel behind it: the cut that its planning kernel makes
// (kernels/mla/mla_plan.cuh), for sequences alike in context and rows.
struct MlaSchedule {
  std::int64_t tiles = 0;
  std::int64_t fragments = 0;  // parts of tiles, each done by one multiprocessor
  std::int64_t rounds = 0;     // fragments that one multiprocessor does, one after the other
  // Of the multiprocessor that is busy longest, in steps of 64 keys: with merges inside its
  // fragments, tail passes, queries.
  double chain = 0;
  std::int64_t loads = 0;    // steps of it that bring keys
  std::int64_t streams = 0;  // different keys that are brought at the same time
  // A single token in clusters brings all its keys at once, some of them twice: so many steps'.
  double burst = 0;
  std::int64_t partials = 0;  // results that are merged afterwards
  double merges = 0;          // one after the other, with what blocks take from each other
  // Share of the merging blocks that find no room before the attention's end.
  double late = 0;
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
