#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "backend/cpu/ops.h"
#include "tests/spec/support/host_tensors.h"

namespace coppice {
namespace {

using testing::HostTensors;
using testing::make_trees;
using testing::values;

struct TreeNode {
  std::int32_t token, parent, depth;
  float score;
  bool operator==(const TreeNode&) const = default;
};

struct Draft {
  std::int64_t depth, k;
  std::vector<std::int32_t> ids;  // [depth, k]
  std::vector<float> log_probs;   // [depth, k], not increasing along k
  float lp(std::size_t d, std::size_t r) const {
    return log_probs[(d - 1) * static_cast<std::size_t>(k) + r];
  }
  std::int32_t id(std::size_t d, std::size_t r) const {
    return ids[(d - 1) * static_cast<std::size_t>(k) + r];
  }
};

// Multiples of 1/4 make sums exact and ties frequent; otherwise any float.
Draft random_draft(std::mt19937& rng, std::int64_t depth, std::int64_t k, bool dyadic) {
  Draft draft{depth, k, {}, {}};
  for (std::int64_t d = 0; d < depth; ++d) {
    std::vector<float> row;
    for (std::int64_t r = 0; r < k; ++r)
      row.push_back(dyadic ? -0.25f * static_cast<float>(rng() % 6)
                           : -std::uniform_real_distribution<float>(0.01f, 5.0f)(rng));
    std::sort(row.rbegin(), row.rend());
    draft.log_probs.insert(draft.log_probs.end(), row.begin(), row.end());
    for (std::int64_t r = 0; r < k; ++r)
      draft.ids.push_back(static_cast<std::int32_t>(100 * (d + 1) + r));
  }
  return draft;
}

// The published loop, step by step: an unordered list of open candidates, the best found by a full
// comparison of (score, rank tuple).
std::vector<TreeNode> published_order(const Draft& draft, std::int64_t budget) {
  struct Open {
    float score;
    std::vector<std::int32_t> ranks;
    std::int32_t parent;
  };
  std::vector<Open> open = {{draft.lp(1, 0), {0}, 0}};
  std::vector<TreeNode> nodes;
  while (!open.empty() && static_cast<std::int64_t>(nodes.size()) < budget) {
    const auto best = std::min_element(open.begin(), open.end(), [](const Open& a, const Open& b) {
      return a.score != b.score ? a.score > b.score : a.ranks < b.ranks;
    });
    const Open taken = *best;
    open.erase(best);
    const std::size_t depth = taken.ranks.size();
    const auto rank = static_cast<std::size_t>(taken.ranks.back());
    nodes.push_back(
        {draft.id(depth, rank), taken.parent, static_cast<std::int32_t>(depth), taken.score});
    if (static_cast<std::int64_t>(rank) + 1 < draft.k) {
      Open sibling = taken;
      ++sibling.ranks.back();
      sibling.score = taken.score - draft.lp(depth, rank) + draft.lp(depth, rank + 1);
      open.push_back(sibling);
    }
    if (static_cast<std::int64_t>(depth) < draft.depth) {
      Open child = taken;
      child.ranks.push_back(0);
      child.score = taken.score + draft.lp(depth + 1, 0);
      child.parent = static_cast<std::int32_t>(nodes.size());
      open.push_back(child);
    }
  }
  return nodes;
}

// Every rank tuple of the whole product space, best first: the top-N set without any search.
std::vector<std::vector<std::int32_t>> top_prefixes(const Draft& draft, std::size_t budget) {
  std::vector<std::pair<float, std::vector<std::int32_t>>> all;
  std::vector<std::pair<float, std::vector<std::int32_t>>> level = {{0.0f, {}}};
  for (std::int64_t d = 1; d <= draft.depth; ++d) {
    std::vector<std::pair<float, std::vector<std::int32_t>>> next;
    for (const auto& [score, ranks] : level)
      for (std::int32_t r = 0; r < static_cast<std::int32_t>(draft.k); ++r) {
        auto child = ranks;
        child.push_back(r);
        next.emplace_back(
            score + draft.lp(static_cast<std::size_t>(d), static_cast<std::size_t>(r)), child);
      }
    all.insert(all.end(), next.begin(), next.end());
    level = std::move(next);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<std::vector<std::int32_t>> best;
  for (std::size_t i = 0; i < std::min(budget, all.size()); ++i) best.push_back(all[i].second);
  return best;
}

class BuildTreeTest : public ::testing::Test {
 protected:
  std::vector<TreeNode> build(const Draft& draft, std::int32_t budget,
                              float min_score = -std::numeric_limits<float>::infinity()) {
    HostTensors pool;
    const TreeBuffers trees = make_trees(pool, 1, std::max(budget, 1));
    cpu::build_tree({.ids = pool.of<std::int32_t>({1, draft.depth, draft.k}, draft.ids),
                     .log_probs = pool.of<float>({1, draft.depth, draft.k}, draft.log_probs),
                     .anchors = pool.of<std::int32_t>({1}, {42}),
                     .budgets = pool.of<std::int32_t>({1}, {budget}),
                     .min_scores = pool.of<float>({1}, {min_score}),
                     .trees = trees},
                    threads_);
    EXPECT_EQ(trees.tokens.data<std::int32_t>()[0], 42);
    EXPECT_EQ(trees.parents.data<std::int32_t>()[0], -1);
    std::vector<TreeNode> nodes;
    for (std::int32_t i = 1; i <= trees.counts.data<std::int32_t>()[0]; ++i)
      nodes.push_back({trees.tokens.data<std::int32_t>()[i], trees.parents.data<std::int32_t>()[i],
                       trees.depths.data<std::int32_t>()[i], trees.scores.data<float>()[i]});
    return nodes;
  }

  ThreadPool threads_{2};
  std::mt19937 rng_{20260601};
};

TEST_F(BuildTreeTest, EqualsThePublishedOrderBitForBit) {
  for (int trial = 0; trial < 600; ++trial) {
    const Draft draft = random_draft(rng_, 1 + rng_() % 8, 1 + rng_() % 9, trial % 2 == 0);
    const auto budget = static_cast<std::int32_t>(1 + rng_() % 70);
    EXPECT_EQ(build(draft, budget), published_order(draft, budget)) << "trial " << trial;
  }
}

TEST_F(BuildTreeTest, TakesTheBestPrefixClosedSetOfTheWholeSpaceInOrder) {
  for (int trial = 0; trial < 200; ++trial) {
    const Draft draft = random_draft(rng_, 1 + rng_() % 4, 1 + rng_() % 5, true);
    const auto budget = static_cast<std::int32_t>(1 + rng_() % 40);
    const std::vector<TreeNode> nodes = build(draft, budget);
    std::vector<std::vector<std::int32_t>> ranks = {{}};
    for (const TreeNode& node : nodes) {
      ranks.push_back(ranks[static_cast<std::size_t>(node.parent)]);
      ranks.back().push_back(node.token - 100 * node.depth);
    }
    ranks.erase(ranks.begin());
    EXPECT_EQ(ranks, top_prefixes(draft, static_cast<std::size_t>(budget))) << "trial " << trial;
  }
}

TEST_F(BuildTreeTest, OnlyTheDocumentedTieOrderPasses) {
  // All scores equal: the order is the rank tuples' alone, shorter first.
  const Draft draft{2, 2, {10, 11, 20, 21}, {0, 0, 0, 0}};
  const std::vector<TreeNode> expected = {{10, 0, 1, 0}, {20, 1, 2, 0}, {21, 1, 2, 0},
                                          {11, 0, 1, 0}, {20, 4, 2, 0}, {21, 4, 2, 0}};
  EXPECT_EQ(build(draft, 9), expected);
  // The planted fault: longer tuples first would give another order.
  std::vector<TreeNode> longer_first = expected;
  std::swap(longer_first[0], longer_first[1]);
  EXPECT_NE(build(draft, 9), longer_first);
}

TEST_F(BuildTreeTest, StopsBelowTheMinimumScoreAndAtBudgetZero) {
  const Draft draft{2, 2, {10, 11, 20, 21}, {-0.5f, -1.0f, -0.25f, -2.0f}};
  EXPECT_EQ(build(draft, 4, -0.75f).size(), 2u);  // -0.5, -0.75; the next is -1.0
  EXPECT_EQ(build(draft, 4, -1.0f).size(), 3u);
  EXPECT_TRUE(build(draft, 0).empty());
}

TEST_F(BuildTreeTest, MissingAndImpossibleCandidatesNeverEnter) {
  const float never = -std::numeric_limits<float>::infinity();
  const Draft draft{2, 2, {10, -1, 20, 21}, {-0.5f, never, -0.25f, never}};
  EXPECT_EQ(build(draft, 8).size(), 2u);
}

TEST_F(BuildTreeTest, EmptyPlacesStayEmptyAndNeighboursAreIndependent) {
  const Draft a = random_draft(rng_, 3, 4, false), c = random_draft(rng_, 3, 4, false);
  HostTensors pool;
  const TreeBuffers trees = make_trees(pool, 3, 12);
  std::vector<std::int32_t> ids = a.ids;
  std::vector<float> log_probs = a.log_probs;
  ids.insert(ids.end(), a.ids.size(), -5);
  log_probs.insert(log_probs.end(), a.ids.size(), std::numeric_limits<float>::quiet_NaN());
  ids.insert(ids.end(), c.ids.begin(), c.ids.end());
  log_probs.insert(log_probs.end(), c.log_probs.begin(), c.log_probs.end());
  cpu::build_tree({.ids = pool.of<std::int32_t>({3, 3, 4}, ids),
                   .log_probs = pool.of<float>({3, 3, 4}, log_probs),
                   .anchors = pool.of<std::int32_t>({3}, {42, -1, 43}),
                   .budgets = pool.of<std::int32_t>({3}, {5, 12, 12}),
                   .min_scores = pool.of<float>({3}, {-99, -99, -99}),
                   .trees = trees},
                  threads_);
  EXPECT_EQ(values<std::int32_t>(trees.counts), (std::vector<std::int32_t>{5, -1, 12}));
  const std::vector<TreeNode> alone = build(c, 12);
  for (std::int32_t i = 1; i <= 12; ++i)
    EXPECT_EQ(trees.tokens.row<std::int32_t>(2)[i], alone[static_cast<std::size_t>(i - 1)].token);
}

TEST_F(BuildTreeTest, TopKRanksTiesByLowestIdAndNormalisesOverTheVocabulary) {
  HostTensors pool;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor logits =
      pool.of<float>({3, 6}, {1, 3, 3, 0, 3, -2, nan, nan, nan, nan, nan, nan, 1, nan, 0, 0, 0, 0});
  const Tensor ids = pool.make<std::int32_t>({3, 4});
  const Tensor log_probs = pool.make<float>({3, 4});
  cpu::top_k_log_probs({.logits = logits, .ids = ids, .log_probs = log_probs}, threads_);
  EXPECT_EQ(values<std::int32_t>(ids),
            (std::vector<std::int32_t>{1, 2, 4, 0, -1, -1, -1, -1, 0, 2, 3, 4}));
  double sum = 0;
  for (const double x : {1.0, 3.0, 3.0, 0.0, 3.0, -2.0}) sum += std::exp(x);
  EXPECT_NEAR(log_probs.row<float>(0)[0], 3 - std::log(sum), 1e-6);
  EXPECT_NEAR(log_probs.row<float>(0)[3], 1 - std::log(sum), 1e-6);
}

TEST_F(BuildTreeTest, NgramProposesWhatFollowedTheMostRecentLongestMatch) {
  HostTensors pool;
  const TreeBuffers trees = make_trees(pool, 4, 3);
  const Tensor history = pool.of<std::int32_t>(
      {4, 9}, {1, 2, 3, 9, 1, 2, 4, 1, 2,    // [1 2] matched at 4: proposes 4 1 2
               1, 2, 3, 4, 5, 6, 7, 8, 9,    // no match
               7, 1, 2, 5, 1, 2, 7, 1, 2,    // [7 1 2] wins over the later [1 2]
               3, 3, 3, 3, 0, 0, 0, 0, 0});  // shorter history, overlapping match
  cpu::ngram_propose({.history = history,
                      .history_len = pool.of<std::int32_t>({4}, {9, 9, 9, 4}),
                      .anchors = pool.of<std::int32_t>({4}, {2, 9, 2, 3}),
                      .budgets = pool.of<std::int32_t>({4}, {3, 3, 2, 3}),
                      .min_ngram = 2,
                      .max_ngram = 4,
                      .trees = trees},
                     threads_);
  EXPECT_EQ(values<std::int32_t>(trees.counts), (std::vector<std::int32_t>{3, 0, 2, 1}));
  const auto tokens = [&](std::int64_t b) {
    const std::int32_t* row = trees.tokens.row<std::int32_t>(b);
    return std::vector<std::int32_t>(row, row + 1 + trees.counts.data<std::int32_t>()[b]);
  };
  EXPECT_EQ(tokens(0), (std::vector<std::int32_t>{2, 4, 1, 2}));
  EXPECT_EQ(tokens(2), (std::vector<std::int32_t>{2, 5, 1}));
  EXPECT_EQ(tokens(3), (std::vector<std::int32_t>{3, 3}));
}

}  // namespace
}  // namespace coppice
