// Requests that several tests of the planner start from.
#pragma once

#include <cstdlib>
#include <filesystem>

#include "model/load_model.h"
#include "planner/plan.h"

namespace coppice::testing {

inline PlanRequest kimi_request(std::int64_t num_ranks, const std::string& gpus = "h200") {
  PlanRequest request;
  request.model = "kimi-k2";
  request.target = kimi_k2_config(61, 384);
  request.drafter = "kimi-k2-dflash";
  request.drafter_config = kimi_k2_dflash_config(request.target);
  request.devices = find_devices(gpus);
  request.num_ranks = num_ranks;
  return request;
}

}  // namespace coppice::testing
