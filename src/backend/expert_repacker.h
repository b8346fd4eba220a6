// Makes the experts that Backend::load_repacked_experts takes, on machines without the device too.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "backend/op_args.h"

namespace coppice {

struct ExpertRepacker {
  std::string layout;  // Backend::expert_layout()
  // Of one layer, or one rank's shard of it. Throws Error(kUnsupported) for formats that the
  // backend does not take.
  std::function<RepackedBlobs(std::span<const ExpertSource> experts)> repack;
};

}  // namespace coppice
