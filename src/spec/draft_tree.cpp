#include "spec/draft_tree.h"

#include <cmath>
#include <cstdio>

namespace coppice {

std::vector<std::int32_t> DraftTree::path_of(std::span<const std::int32_t> emitted) const {
  std::vector<std::int32_t> path = {0};
  for (std::size_t i = 0; i + 1 < emitted.size(); ++i) {
    std::int32_t child = path.back() + 1;
    while (child <= num_nodes() && !(parents[static_cast<std::size_t>(child)] == path.back() &&
                                     tokens[static_cast<std::size_t>(child)] == emitted[i]))
      ++child;
    COPPICE_CHECK_LE(child, num_nodes());
    path.push_back(child);
  }
  return path;
}

DraftTree read_tree(const TreeBuffers& trees, std::int64_t b) {
  DraftTree tree;
  const std::int64_t count = trees.counts.data<std::int32_t>()[b];
  const auto copy = [&](const auto* row, auto& out) { out.assign(row, row + count + 1); };
  copy(trees.tokens.row<std::int32_t>(b), tree.tokens);
  copy(trees.parents.row<std::int32_t>(b), tree.parents);
  copy(trees.depths.row<std::int32_t>(b), tree.depths);
  copy(trees.scores.row<float>(b), tree.scores);
  return tree;
}

namespace {

class TreeDrawing {
 public:
  TreeDrawing(const DraftTree& tree, std::span<const std::int32_t> accepted,
              const std::function<std::string(std::int32_t)>& text_of, std::int64_t max_lines)
      : tree_(tree), text_of_(text_of), max_lines_(max_lines) {
    is_accepted_.assign(tree.tokens.size(), false);
    for (const std::int32_t node : accepted) is_accepted_[static_cast<std::size_t>(node)] = true;
    children_.resize(tree.tokens.size());
    for (std::size_t node = 1; node < tree.tokens.size(); ++node)
      children_[static_cast<std::size_t>(tree.parents[node])].push_back(node);
  }

  std::string draw() {
    if (tree_.tokens.empty()) return "(no tree)\n";
    out_ = text(0) + '\n';
    draw_children(0, "");
    if (hidden_ > 0) out_ += "(" + std::to_string(hidden_) + " more nodes)\n";
    return out_;
  }

 private:
  std::string text(std::size_t node) const { return '`' + text_of_(tree_.tokens[node]) + '`'; }

  void draw_children(std::size_t parent, const std::string& indent) {
    for (const std::size_t node : children_[parent]) {
      const bool last = node == children_[parent].back();
      if (lines_++ < max_lines_) {
        char probability[32];
        std::snprintf(probability, sizeof probability, "  %.2f",
                      std::exp(static_cast<double>(tree_.scores[node])));
        out_ += indent + (last ? "`-" : "+-") + (is_accepted_[node] ? "* " : "  ") + text(node) +
                probability + '\n';
      } else {
        ++hidden_;
      }
      draw_children(node, indent + (last ? "   " : "|  "));
    }
  }

  const DraftTree& tree_;
  const std::function<std::string(std::int32_t)>& text_of_;
  std::int64_t max_lines_;
  std::vector<bool> is_accepted_;
  std::vector<std::vector<std::size_t>> children_;  // best first
  std::string out_;
  std::int64_t lines_ = 0;
  std::int64_t hidden_ = 0;
};

}  // namespace

std::string draw_tree(const DraftTree& tree, std::span<const std::int32_t> accepted,
                      const std::function<std::string(std::int32_t)>& text_of,
                      std::int64_t max_lines) {
  return TreeDrawing(tree, accepted, text_of, max_lines).draw();
}

}  // namespace coppice
