#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "backend/cpu/ops.h"
#include "tests/spec/support/host_tensors.h"

namespace coppice {
namespace {

using testing::HostTensors;
using testing::make_trees;
using testing::Node;
using testing::set_tree;
using testing::values;
using Ints = std::vector<std::int32_t>;

class CompileTreeTest : public ::testing::Test {
 protected:
  CompileTreeArgs make_args(std::int64_t batch, std::int64_t rows) {
    CompileTreeArgs args;
    args.trees = make_trees(pool_, batch, 16);
    args.context_len = pool_.make<std::int32_t>({batch});
    args.block_tables = pool_.make<std::int32_t>({batch, 4});
    for (std::int32_t i = 0; i < batch * 4; ++i)
      args.block_tables.data<std::int32_t>()[i] = 10 + 3 * i;
    args.token_ids = pool_.make<std::int32_t>({rows}, 77);
    args.positions = pool_.make<std::int32_t>({rows}, 77);
    args.slots = pool_.make<std::int32_t>({rows}, 77);
    args.seq_of_row = pool_.make<std::int32_t>({rows}, 77);
    args.node_of_row = pool_.make<std::int32_t>({rows}, 77);
    args.kv_len = pool_.make<std::int32_t>({rows}, 77);
    args.path_len = pool_.make<std::int32_t>({rows}, 77);
    args.path = pool_.make<std::int32_t>({rows, 8}, 77);
    args.row_offsets = pool_.make<std::int32_t>({batch + 1}, 77);
    return args;
  }

  HostTensors pool_;
  ThreadPool threads_{2};
};

TEST_F(CompileTreeTest, WritesRaggedRowsSlotsAndPaths) {
  CompileTreeArgs args = make_args(3, 8);
  // Tree 0: root 5 -> {6 -> 8, 7}; its rows straddle a block border. Place 1 is empty.
  set_tree(args.trees, 0, 5, {{6, 0}, {7, 0}, {8, 1}});
  set_tree(args.trees, 2, 9, {{1, 0}});
  args.context_len.data<std::int32_t>()[0] = 62;
  args.context_len.data<std::int32_t>()[2] = 3;
  cpu::compile_tree(args, threads_);
  EXPECT_EQ(values<std::int32_t>(args.row_offsets), (Ints{0, 4, 4, 6}));
  EXPECT_EQ(values<std::int32_t>(args.token_ids), (Ints{5, 6, 7, 8, 9, 1, -1, -1}));
  EXPECT_EQ(values<std::int32_t>(args.positions), (Ints{62, 63, 63, 64, 3, 4, 0, 0}));
  EXPECT_EQ(values<std::int32_t>(args.seq_of_row), (Ints{0, 0, 0, 0, 2, 2, -1, -1}));
  EXPECT_EQ(values<std::int32_t>(args.node_of_row), (Ints{0, 1, 2, 3, 0, 1, -1, -1}));
  EXPECT_EQ(values<std::int32_t>(args.kv_len), (Ints{62, 62, 62, 62, 3, 3, 0, 0}));
  EXPECT_EQ(values<std::int32_t>(args.path_len), (Ints{1, 2, 2, 3, 1, 2, 0, 0}));
  const std::int32_t first = 10 * 64, second = 13 * 64, other = 34 * 64;
  EXPECT_EQ(values<std::int32_t>(args.slots),
            (Ints{first + 62, first + 63, second, second + 1, other + 3, other + 4, -1, -1}));
  const Ints path = values<std::int32_t>(args.path.rows(3, 1));
  EXPECT_EQ(path, (Ints{first + 62, first + 63, second + 1, -1, -1, -1, -1, -1}));
}

TEST_F(CompileTreeTest, WithoutCostsTreesAreCutOnlyToFit) {
  CompileTreeArgs args = make_args(2, 5);
  const auto lp = [](double p) { return static_cast<float>(std::log(p)); };
  set_tree(args.trees, 0, 5, {{6, 0, lp(0.5)}, {7, 1, lp(0.1)}, {8, 0, lp(0.05)}});
  set_tree(args.trees, 1, 5, {{6, 0, lp(0.4)}, {7, 0, lp(0.3)}});
  cpu::compile_tree(args, threads_);
  // Three nodes fit: 0.5, 0.4, 0.3.
  EXPECT_EQ(values<std::int32_t>(args.trees.counts), (Ints{1, 2}));
  EXPECT_EQ(values<std::int32_t>(args.row_offsets), (Ints{0, 2, 5}));
}

// Tries every pair of prefixes within every bucket.
float best_rate_by_enumeration(const CompileTreeArgs& args) {
  const auto value = [&](std::int64_t b, std::int32_t n) {
    return std::exp(args.trees.scores.row<float>(b)[n]) *
           args.calibration.data<float>()[args.trees.depths.row<std::int32_t>(b)[n]];
  };
  float best = -1;
  for (std::int64_t i = 0; i < args.bucket_rows.shape(0); ++i) {
    const std::int32_t rows = args.bucket_rows.data<std::int32_t>()[i];
    for (std::int32_t n0 = 0; n0 <= args.trees.counts.data<std::int32_t>()[0]; ++n0)
      for (std::int32_t n1 = 0; n1 <= args.trees.counts.data<std::int32_t>()[1]; ++n1) {
        if (n0 + n1 + 2 > rows || rows > args.token_ids.shape(0)) continue;
        float tokens = 2;
        for (std::int32_t n = 1; n <= n0; ++n) tokens += value(0, n);
        for (std::int32_t n = 1; n <= n1; ++n) tokens += value(1, n);
        best = std::max(best, tokens / args.cost_ms.data<float>()[i]);
      }
  }
  return best;
}

TEST_F(CompileTreeTest, CutReachesTheBestTokensPerMillisecondOfAllPrefixes) {
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> uniform(0.05f, 0.95f);
  for (int trial = 0; trial < 200; ++trial) {
    CompileTreeArgs args = make_args(2, 16);
    for (std::int64_t b = 0; b < 2; ++b) {
      std::vector<Node> nodes;
      float score = 0;
      for (std::int32_t n = 0; n < 10; ++n) {
        score += 0.5f * std::log(uniform(rng));
        nodes.push_back({n, n / 2, score});
      }
      set_tree(args.trees, b, 1, nodes);
    }
    args.bucket_rows = pool_.of<std::int32_t>({5}, {2, 4, 8, 12, 16});
    std::vector<float> cost = {1};
    for (int i = 0; i < 4; ++i) cost.push_back(cost.back() + 0.4f * uniform(rng));
    args.cost_ms = pool_.of<float>({5}, cost);
    // Decreasing with depth, so that greedy merging is optimal.
    args.calibration = pool_.of<float>({6}, {1, 1, 0.9f, 0.8f, 0.7f, 0.6f});
    const float expected = best_rate_by_enumeration(args);
    cpu::compile_tree(args, threads_);
    const std::int32_t rows = args.row_offsets.data<std::int32_t>()[2];
    float tokens = 2;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int32_t n = 1; n <= args.trees.counts.data<std::int32_t>()[b]; ++n)
        tokens += std::exp(args.trees.scores.row<float>(b)[n]) *
                  args.calibration.data<float>()[args.trees.depths.row<std::int32_t>(b)[n]];
    std::size_t bucket = 0;
    while (args.bucket_rows.data<std::int32_t>()[bucket] < rows) ++bucket;
    EXPECT_NEAR(tokens / cost[bucket], expected, 1e-5f) << "trial " << trial;
  }
}

TEST_F(CompileTreeTest, DraftRowsHoldAnchorMasksAndTheWholeBlock) {
  CompileDraftArgs args;
  args.anchors = pool_.of<std::int32_t>({2}, {-1, 5});
  args.context_len = pool_.of<std::int32_t>({2}, {9, 62});
  args.block_tables = pool_.of<std::int32_t>({2, 2}, {0, 1, 4, 2});
  args.mask_token_id = 99;
  for (Tensor* tensor : {&args.token_ids, &args.positions, &args.slots, &args.seq_of_row,
                         &args.kv_len, &args.path_len})
    *tensor = pool_.make<std::int32_t>({6}, 77);
  cpu::compile_draft(args, threads_);
  EXPECT_EQ(values<std::int32_t>(args.token_ids), (Ints{-1, -1, -1, 5, 99, 99}));
  EXPECT_EQ(values<std::int32_t>(args.positions), (Ints{0, 0, 0, 62, 63, 64}));
  EXPECT_EQ(values<std::int32_t>(args.slots), (Ints{-1, -1, -1, 4 * 64 + 62, 4 * 64 + 63, 2 * 64}));
  EXPECT_EQ(values<std::int32_t>(args.seq_of_row), (Ints{-1, -1, -1, 1, 1, 1}));
  EXPECT_EQ(values<std::int32_t>(args.kv_len), (Ints{0, 0, 0, 65, 65, 65}));
  EXPECT_EQ(values<std::int32_t>(args.path_len), (Ints{0, 0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace coppice
