// What a request may ask of an engine. Knows integers only.
#pragma once

#include "engine/engine_config.h"
#include "engine/request.h"
#include "model/model_config.h"

namespace coppice {

struct RequestLimits {
  std::int64_t vocab_size = 0;
  std::int64_t max_model_len = 0;  // prompt and output tokens
  std::int64_t num_blocks = 0;     // of the cache
  std::int64_t reserve = 0;  // cache positions past the computed ones that two rounds may touch
};

// Throws Error(kInvalidArgument) naming the field that cannot be met: what passes fits alone.
void check_request(const Request& request, const RequestLimits& limits);

// The configured max_model_len or, when it is 0, the model's. Throws Error(kInvalidArgument) if the
// model cannot do that.
std::int64_t effective_model_len(const EngineConfig& config, const ModelConfig& model);

}  // namespace coppice
