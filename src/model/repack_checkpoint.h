// From a published model folder to one whose routed experts lie in the layout of a backend's
// kernels, a part for every rank: loading it copies them as they are.
#pragma once

#include <cstdint>
#include <filesystem>

#include "backend/expert_repacker.h"
#include "io/checkpoint.h"

namespace coppice {

struct RepackOptions {
  ExpertRepacker repacker;
  std::int64_t num_ranks = 1;
  std::uint64_t shard_bytes = 5'000'000'000;  // of what is copied; experts have a file a layer
  int num_threads = 0;                        // 0: available_cpus()
  ProgressCallback progress = {};             // source bytes done, of all
};

struct RepackResult {
  std::int64_t layers = 0;  // with experts
  std::uint64_t source_bytes = 0;
  std::uint64_t written_bytes = 0;
};

// Reads the model folder `source` and writes `destination`, which must be absent or empty.
// coppice_repack.json comes last, so an interrupted run leaves no loadable folder. Throws
// kInvalidArgument (destination), kUnsupported (no routed experts, GGUF, widths that do not split,
// experts of another format), kBadFile, kUnavailable (disk).
RepackResult repack_checkpoint(const std::filesystem::path& source,
                               const std::filesystem::path& destination,
                               const RepackOptions& options);

}  // namespace coppice
