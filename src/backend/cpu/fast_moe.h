// Routed experts over packed weights.
#pragma once

#include <vector>

#include "backend/cpu/packed_matrix.h"
#include "backend/cpu/workspace.h"

namespace coppice::cpu {

class FastMoe {
 public:
  void run(const simd::Kernels& kernels, const MoeExpertsArgs& args,
           const std::vector<PackedExpert>& experts, ThreadPool& pool);

 private:
  // Slots (t * top_k + k) of the step, sorted by expert and then by slot.
  struct Route {
    std::int64_t num_active = 0;
    const std::int32_t* experts = nullptr;  // [num_active] ascending
    const std::int32_t* begins = nullptr;   // [num_active + 1] into slots and rows
    const std::int32_t* slots = nullptr;
    const std::int32_t* rows = nullptr;  // slot / top_k
  };
  Route sort_by_expert(const MoeExpertsArgs& args);

  Workspace route_workspace_, x_workspace_, hidden_workspace_, down_workspace_;
};

}  // namespace coppice::cpu
