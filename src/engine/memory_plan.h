// What an engine will take of a device, before the first byte of a weight is read.
#pragma once

#include <string>

#include "backend/backend.h"
#include "engine/engine_config.h"

namespace coppice {

// Bytes.
struct MemoryPlan {
  std::int64_t weights = 0, drafter_weights = 0;  // as stored; formats that are unpacked take more
  std::int64_t cache = 0, drafter_cache = 0;
  std::int64_t logits = 0;     // of the largest verify step and of a draft pass
  std::int64_t workspace = 0;  // of kernels, activations, captured rounds
  std::int64_t total() const {
    return weights + drafter_weights + cache + drafter_cache + logits + workspace;
  }
  std::string describe() const;
};

// Sizes of the networks, from their headers.
struct MemoryDemand {
  std::int64_t weights = 0, drafter_weights = 0;
  std::int64_t token_bytes = 0, drafter_token_bytes = 0;  // of one position in the caches
  std::int64_t vocab_size = 0;
  std::int64_t max_model_len = 0;
  std::int64_t draft_rows = 0;  // logits of one sequence's draft pass
};
MemoryDemand memory_demand(const EngineConfig& config, DType kv_dtype);

// Gives the cache what the configuration says or, if it says nothing, what is left: at most room
// for max_num_seqs sequences of max_model_len, at least for one. Throws Error(kOutOfMemory) naming
// every part when that does not fit.
MemoryPlan plan_memory(const EngineConfig& config, const MemoryDemand& demand,
                       const Backend::Memory& memory);

}  // namespace coppice
