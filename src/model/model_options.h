// How large a network's working memory is, and which part of the network this process holds.
#pragma once

#include <cstdint>
#include <optional>

#include "model/parallel_config.h"

namespace coppice {

struct ModelOptions {
  std::int64_t max_rows = 256;     // largest step, and largest chunk of drafter context
  std::int64_t max_positions = 0;  // 0: max_position_embeddings
  ParallelConfig parallel = {};
  std::int64_t max_batch = 64;    // drafter: sequences of one draft pass
  std::int64_t draft_window = 0;  // drafter: keys further back are not read; 0: all
  std::optional<double> draft_attention_factor = {};  // drafter: in place of its file's amplitude
};

// Positions of draft nodes and of a draft block run past the last position of a sequence.
inline constexpr std::int64_t kPositionSlack = 64;

// Rows of the rope table.
inline std::int64_t num_positions(const ModelConfig& config, const ModelOptions& options) {
  const std::int64_t positions =
      options.max_positions > 0 ? options.max_positions : config.max_position_embeddings;
  return positions + kPositionSlack;
}

}  // namespace coppice
