// One draft tree on the host: for traces, metrics and tests. Node 0 is the root (the anchor);
// parents precede children.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/op_args.h"

namespace coppice {

struct DraftTree {
  std::vector<std::int32_t> tokens;   // [num_nodes + 1]
  std::vector<std::int32_t> parents;  // [num_nodes + 1]; -1 for the root
  std::vector<std::int32_t> depths;   // [num_nodes + 1]
  std::vector<float> scores;          // [num_nodes + 1]: joint log-probability

  std::int64_t num_nodes() const { return std::ssize(tokens) - 1; }
  // The nodes that spell `emitted` (without its last token, the bonus), root first.
  std::vector<std::int32_t> path_of(std::span<const std::int32_t> emitted) const;
};

// Tree b of host memory laid out as TreeBuffers; empty when the place is.
DraftTree read_tree(const TreeBuffers& trees, std::int64_t b);

// The tree as indented text, one node a line with its probability, accepted nodes marked:
//
//   `def`
//   +-* ` fib`  0.93
//   |  `-* `(`  0.88
//   `-  ` add`  0.02
//
// `text_of` must give printable text for a token id. At most max_lines lines; the rest is counted.
std::string draw_tree(const DraftTree& tree, std::span<const std::int32_t> accepted,
                      const std::function<std::string(std::int32_t)>& text_of,
                      std::int64_t max_lines = 40);

}  // namespace coppice
