// Cut the trees of a batch to the best total number of rows, then lay out the rows of the verify
// step.
#include <algorithm>
#include <cmath>
#include <queue>
#include <vector>

#include "backend/cpu/ops.h"
#include "backend/cpu/slot.h"

namespace coppice::cpu {
namespace {

std::int32_t* ints(const Tensor& tensor) {
  return tensor.data<std::int32_t>();
}

// Nodes of all trees in the order in which a growing bucket takes them.
struct MergedNodes {
  std::vector<std::int32_t> sequence;
  std::vector<float> sum;  // value of the first i + 1 nodes, added in this order
  std::int64_t num_sequences = 0;

  // Expected tokens of a bucket: one for every sequence, and the value of the nodes that fit.
  float tokens(std::int64_t rows) const {
    const std::int64_t nodes = std::min(rows - num_sequences, size());
    return static_cast<float>(num_sequences) +
           (nodes > 0 ? sum[static_cast<std::size_t>(nodes - 1)] : 0.0f);
  }
  std::int64_t size() const { return static_cast<std::int64_t>(sequence.size()); }
};

float node_value(const CompileTreeArgs& args, std::int64_t b, std::int32_t node) {
  const float probability = std::exp(args.trees.scores.row<float>(b)[node]);
  if (args.calibration.empty()) return probability;
  const std::int32_t depth = args.trees.depths.row<std::int32_t>(b)[node];
  COPPICE_CHECK_LT(depth, args.calibration.shape(0));
  return probability * args.calibration.data<float>()[depth];
}

MergedNodes merge_nodes(const CompileTreeArgs& args) {
  struct Head {
    float value;
    std::int32_t sequence, node;
    bool operator<(const Head& other) const {
      return value != other.value ? value < other.value : sequence > other.sequence;
    }
  };
  const std::int32_t* counts = ints(args.trees.counts);
  MergedNodes merged;
  std::priority_queue<Head> heads;
  const auto push = [&](std::int32_t b, std::int32_t node) {
    if (node <= counts[b]) heads.push({node_value(args, b, node), b, node});
  };
  for (std::int32_t b = 0; b < static_cast<std::int32_t>(args.trees.counts.shape(0)); ++b) {
    if (counts[b] < 0) continue;
    ++merged.num_sequences;
    push(b, 1);
  }
  float sum = 0;
  while (!heads.empty()) {
    const Head head = heads.top();
    heads.pop();
    sum += head.value;
    merged.sequence.push_back(head.sequence);
    merged.sum.push_back(sum);
    push(head.sequence, head.node + 1);
  }
  return merged;
}

// Rows worth verifying, at most max_rows.
std::int64_t best_total_rows(const CompileTreeArgs& args, const MergedNodes& merged,
                             std::int64_t max_rows) {
  if (args.cost_ms.empty()) return max_rows;
  std::int64_t best_rows = merged.num_sequences;
  float best_rate = -1;
  for (std::int64_t i = 0; i < args.bucket_rows.shape(0); ++i) {
    const std::int64_t rows = ints(args.bucket_rows)[i];
    if (rows < merged.num_sequences || rows > max_rows) continue;
    const float rate = merged.tokens(rows) / args.cost_ms.data<float>()[i];
    if (rate > best_rate) {
      best_rate = rate;
      best_rows = rows;
    }
  }
  return best_rows;
}

// Lowers counts so that all rows fit.
void cut_trees(const CompileTreeArgs& args) {
  const std::int64_t max_rows = args.token_ids.shape(0);
  std::int32_t* counts = ints(args.trees.counts);
  const std::int64_t batch = args.trees.counts.shape(0);
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < batch; ++b) rows += counts[b] + 1;
  if (args.cost_ms.empty() && rows <= max_rows) return;
  const MergedNodes merged = merge_nodes(args);
  COPPICE_CHECK_LE(merged.num_sequences, max_rows);
  const std::int64_t kept =
      std::min(best_total_rows(args, merged, max_rows) - merged.num_sequences, merged.size());
  for (std::int64_t b = 0; b < batch; ++b) counts[b] = std::min(counts[b], 0);
  for (std::int64_t i = 0; i < kept; ++i) ++counts[merged.sequence[static_cast<std::size_t>(i)]];
}

void write_padding(const CompileTreeArgs& args, std::int64_t row) {
  ints(args.token_ids)[row] = -1;
  ints(args.positions)[row] = 0;
  ints(args.slots)[row] = -1;
  ints(args.seq_of_row)[row] = -1;
  ints(args.node_of_row)[row] = -1;
  ints(args.kv_len)[row] = 0;
  ints(args.path_len)[row] = 0;
  std::fill_n(args.path.row<std::int32_t>(row), args.path.shape(1), -1);
}

// One node's row; its parent's row was written before it.
void write_row(const CompileTreeArgs& args, std::int64_t b, std::int32_t node, std::int64_t first) {
  const std::int64_t row = first + node;
  const std::int32_t context_len = ints(args.context_len)[b];
  const std::int32_t depth = args.trees.depths.row<std::int32_t>(b)[node];
  COPPICE_CHECK_LT(depth, args.path.shape(1));
  const std::int32_t slot = slot_of(args.block_tables, b, context_len + node);
  ints(args.token_ids)[row] = args.trees.tokens.row<std::int32_t>(b)[node];
  ints(args.positions)[row] = context_len + depth;
  ints(args.slots)[row] = slot;
  ints(args.seq_of_row)[row] = static_cast<std::int32_t>(b);
  ints(args.node_of_row)[row] = node;
  ints(args.kv_len)[row] = context_len;
  ints(args.path_len)[row] = depth + 1;
  auto* path = args.path.row<std::int32_t>(row);
  if (node > 0) {
    const std::int32_t parent = args.trees.parents.row<std::int32_t>(b)[node];
    std::copy_n(args.path.row<std::int32_t>(first + parent), depth, path);
  }
  path[depth] = slot;
  std::fill(path + depth + 1, path + args.path.shape(1), -1);
}

}  // namespace

void compile_tree(const CompileTreeArgs& args, ThreadPool&) {
  cut_trees(args);
  const std::int32_t* counts = ints(args.trees.counts);
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < args.trees.counts.shape(0); ++b) {
    ints(args.row_offsets)[b] = static_cast<std::int32_t>(row);
    for (std::int32_t node = 0; node <= counts[b]; ++node) write_row(args, b, node, row);
    row += counts[b] + 1;
  }
  ints(args.row_offsets)[args.trees.counts.shape(0)] = static_cast<std::int32_t>(row);
  for (; row < args.token_ids.shape(0); ++row) write_padding(args, row);
}

}  // namespace coppice::cpu
