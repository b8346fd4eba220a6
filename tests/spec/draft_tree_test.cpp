#include "spec/draft_tree.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/ops.h"
#include "tests/spec/support/host_tensors.h"
#include "tests/support/golden_file.h"

namespace coppice {
namespace {

using testing::GoldenFile;
using testing::HostTensors;

DraftTree small_tree() {
  return {.tokens = {1, 2, 3, 4, 5},
          .parents = {-1, 0, 1, 0, 1},
          .depths = {0, 1, 2, 1, 2},
          .scores = {0, std::log(0.9f), std::log(0.8f), std::log(0.05f), std::log(0.02f)}};
}

TEST(DraftTreeTest, DrawsTheAcceptedPath) {
  const DraftTree tree = small_tree();
  const std::vector<std::int32_t> emitted = {2, 5, 77};
  const std::vector<std::int32_t> path = tree.path_of(emitted);
  EXPECT_EQ(path, (std::vector<std::int32_t>{0, 1, 4}));
  EXPECT_EQ(draw_tree(tree, path, [](std::int32_t token) { return "t" + std::to_string(token); }),
            "`t1`\n"
            "+-* `t2`  0.90\n"
            "|  +-  `t3`  0.80\n"
            "|  `-* `t5`  0.02\n"
            "`-  `t4`  0.05\n");
}

TEST(DraftTreeTest, CountsWhatItDoesNotDraw) {
  const std::string text = draw_tree(
      small_tree(), {}, [](std::int32_t) { return std::string("x"); }, 2);
  EXPECT_EQ(text, "`x`\n+-  `x`  0.90\n|  +-  `x`  0.80\n(2 more nodes)\n");
}

// Trees of tiny-k2's own draft logits against the stored ones.
TEST(GoldenTreeTest, BudgetsOf8And16And64) {
  ThreadPool threads(1);
  for (const char* name : testing::kGoldenPrompts) {
    const GoldenFile golden(name);
    HostTensors pool;
    const auto logits = golden.floats("draft_logits");
    constexpr std::int64_t kDepth = 7;
    const auto vocab_size = static_cast<std::int64_t>(logits.size()) / kDepth;
    for (const std::int32_t budget : {8, 16, 64}) {
      const Tensor ids = pool.make<std::int32_t>({kDepth, budget});
      const Tensor log_probs = pool.make<float>({kDepth, budget});
      cpu::top_k_log_probs(
          {.logits = pool.of<float>({kDepth, vocab_size}, {logits.begin(), logits.end()}),
           .ids = ids,
           .log_probs = log_probs},
          threads);
      const TreeBuffers trees = testing::make_trees(pool, 1, budget);
      cpu::build_tree({.ids = ids.reshape({1, kDepth, budget}),
                       .log_probs = log_probs.reshape({1, kDepth, budget}),
                       .anchors = pool.of<std::int32_t>({1}, {0}),
                       .budgets = pool.of<std::int32_t>({1}, {budget}),
                       .min_scores = pool.of<float>({1}, {-1e30f}),
                       .trees = trees},
                      threads);
      const DraftTree tree = read_tree(trees, 0);
      const std::string prefix = "tree" + std::to_string(budget) + ".";
      const auto tokens = golden.ints(prefix + "tokens"), parents = golden.ints(prefix + "parents");
      const auto depths = golden.ints(prefix + "depths");
      const auto scores = golden.floats(prefix + "scores");
      ASSERT_EQ(tree.num_nodes(), std::ssize(tokens)) << name << " " << prefix;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(tree.tokens[i + 1], tokens[i]) << name << " " << prefix << i;
        EXPECT_EQ(tree.parents[i + 1], parents[i]) << name << " " << prefix << i;
        EXPECT_EQ(tree.depths[i + 1], depths[i]) << name << " " << prefix << i;
        EXPECT_NEAR(tree.scores[i + 1], scores[i], 1e-4) << name << " " << prefix << i;
      }
    }
  }
}

}  // namespace
}  // namespace coppice
