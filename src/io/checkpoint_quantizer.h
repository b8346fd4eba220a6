// From a BF16 or FP8 checkpoint of the DeepSeek-V3 architecture to the INT4 form that Kimi-K2.5
// ships in: routed experts pack-quantized, everything else BF16 or as it was.
#pragma once

#include <cstdint>
#include <filesystem>

#include "io/checkpoint.h"

namespace coppice {

struct QuantizeOptions {
  std::uint64_t shard_bytes = 5'000'000'000;  // a shard ends before the tensor that would exceed it
  int num_threads = 0;                        // 0: available_cpus()
  ProgressCallback progress = {};             // source bytes done, of all
};

struct QuantizeResult {
  std::int64_t quantized_tensors = 0;
  std::int64_t other_tensors = 0;
  std::uint64_t source_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::size_t shards = 0;
  double relative_error = 0;  // of the quantised weights: root of sum (w - q s)^2 / sum w^2
};

// Reads the model folder `source` and writes `destination`, which must be absent or empty: shards,
// their index, config.json with the quantization_config, and copies of the small files beside them
// (tokenizer, templates). The index comes last, so an interrupted run leaves no loadable folder.
// Throws kInvalidArgument (destination, no routed experts), kUnsupported (GGUF, already quantised),
// kBadFile (a weight that is damaged or not finite), kUnavailable (disk).
QuantizeResult quantize_checkpoint(const std::filesystem::path& source,
                                   const std::filesystem::path& destination,
                                   const QuantizeOptions& options = {});

}  // namespace coppice
