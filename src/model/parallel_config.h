// Tensor parallelism: which part of a network this rank holds.
#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace coppice {

struct ParallelConfig {
  std::int64_t rank = 0;
  std::int64_t size = 1;
};

// Elements [begin, begin + count) of a dimension.
struct Shard {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// This rank's equal part of `total`. Throws Error(kUnsupported) naming `field` when the parts are
// not equal or no multiple of `multiple`.
Shard shard_of(const ParallelConfig& parallel, std::int64_t total, std::int64_t multiple,
               const char* field);

// Throws as above unless heads, key/value heads, MLP widths and vocabulary of the network can be
// split. Experts are split by width, at whole groups of 32. What is small or must give every rank
// the same bits is whole on each: embedding, norms, router, q_a and kv_a.
void check_parallel(const ModelConfig& config, const ParallelConfig& parallel);

}  // namespace coppice
