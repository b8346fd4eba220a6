// A drafter that knows what the target will say, and plants misses: the true token stands at a
// drawn rank among wrong siblings, and at drawn depths it is missing. So accepted paths are
// scattered over the tree and of every length, whatever the target is.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "spec/drafter.h"

namespace coppice::testing {

struct OracleScript {
  std::map<std::int64_t, std::vector<std::int32_t>> tokens_of_seed;  // prompt and continuation
  std::int64_t depth = 7;
  double miss_probability = 0.15;  // of a depth
  std::uint32_t max_siblings = 3;  // 1: a chain
};

// Host memory only.
class OracleDrafter final : public Drafter {
 public:
  explicit OracleDrafter(std::shared_ptr<const OracleScript> script) : script_(std::move(script)) {}

  const char* name() const override { return "oracle"; }
  std::int64_t max_depth() const override { return script_->depth; }
  void draft(const DraftBatch&) override {}
  void build_tree(const DraftBatch& batch) override {
    for (std::int64_t b = 0; b < batch.anchors.shape(0); ++b) build(batch, b);
  }

 private:
  void build(const DraftBatch& batch, std::int64_t b) {
    const std::int32_t anchor = batch.anchors.data<std::int32_t>()[b];
    std::int32_t& count = batch.trees.counts.data<std::int32_t>()[b];
    count = anchor < 0 ? -1 : 0;
    if (anchor < 0) return;
    add(batch.trees, b, 0, -1, anchor);
    const auto known = script_->tokens_of_seed.find(batch.sampling.seed.data<std::int64_t>()[b]);
    if (known == script_->tokens_of_seed.end()) return;
    const std::vector<std::int32_t>& truth = known->second;
    std::int64_t position = batch.context_len.data<std::int32_t>()[b];
    const std::int32_t budget = batch.budgets.data<std::int32_t>()[b];
    std::int32_t parent = 0;  // on the true path
    for (std::int64_t d = 1; d <= script_->depth; ++d) {
      const bool hit = ++position < std::ssize(truth) &&
                       std::uniform_real_distribution<>(0, 1)(rng_) >= script_->miss_probability;
      const auto siblings = static_cast<std::int32_t>(1 + rng_() % script_->max_siblings);
      const auto true_rank = static_cast<std::int32_t>(rng_() % static_cast<unsigned>(siblings));
      std::int32_t next = -1;
      for (std::int32_t rank = 0; rank < siblings && count < budget; ++rank) {
        const bool is_true = hit && rank == true_rank;
        const std::int32_t token = is_true ? truth[static_cast<std::size_t>(position)]
                                           : static_cast<std::int32_t>(30 + 7 * d + rank);
        if (!is_true && hit && token == truth[static_cast<std::size_t>(position)]) continue;
        add(batch.trees, b, ++count, parent, token);
        if (is_true) next = count;
        if (is_true || count >= budget || d == script_->depth) continue;
        ++count;
        add(batch.trees, b, count, count - 1, token + 1);  // a wrong branch's own child
      }
      if (next < 0) return;
      parent = next;
    }
  }

  static void add(const TreeBuffers& trees, std::int64_t b, std::int32_t node, std::int32_t parent,
                  std::int32_t token) {
    trees.tokens.row<std::int32_t>(b)[node] = token;
    trees.parents.row<std::int32_t>(b)[node] = parent;
    auto* depths = trees.depths.row<std::int32_t>(b);
    depths[node] = parent < 0 ? 0 : depths[parent] + 1;
    trees.scores.row<float>(b)[node] = -0.1f * static_cast<float>(depths[node]);
  }

  std::shared_ptr<const OracleScript> script_;
  std::mt19937 rng_{11};
};

}  // namespace coppice::testing
