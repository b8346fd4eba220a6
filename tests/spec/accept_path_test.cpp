#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "backend/cpu/ops.h"
#include "tests/spec/support/host_tensors.h"

namespace coppice {
namespace {

using testing::HostTensors;
using testing::make_sampling;
using testing::make_trees;
using testing::set_tree;
using testing::values;
using Ints = std::vector<std::int32_t>;

constexpr std::int32_t kBlock = 3;  // the one block of the sequence

// One sequence with context 10, tree: 5 -> {6 -> {8 -> 9}, 7}; row i is node i.
class AcceptPathTest : public ::testing::Test {
 protected:
  AcceptPathTest() {
    args_.trees = make_trees(pool_, 1, 8);
    set_tree(args_.trees, 0, 5, {{7, 0}, {6, 0}, {8, 2}, {4, 1}, {9, 3}});
    args_.row_offsets = pool_.of<std::int32_t>({2}, {0, 6});
    args_.choices = pool_.make<std::int32_t>({6}, 1000);
    args_.finite = pool_.make<std::int32_t>({6}, 1);
    args_.slots = pool_.make<std::int32_t>({6});
    std::iota(args_.slots.data<std::int32_t>(), args_.slots.data<std::int32_t>() + 6,
              kBlock * 64 + 10);
    args_.block_tables = pool_.of<std::int32_t>({1, 1}, {kBlock});
    args_.sampling = make_sampling(pool_, 1, 32);
    args_.sampling.prompt_len.data<std::int32_t>()[0] = 9;
    args_.sampling.history_len.data<std::int32_t>()[0] = 11;
    args_.context_len = pool_.of<std::int32_t>({1}, {10});
    args_.anchors = pool_.of<std::int32_t>({1}, {5});
    args_.accepted_rows = pool_.make<std::int32_t>({1, 4});
    args_.emitted = pool_.make<std::int32_t>({1, 4});
    args_.num_emitted = pool_.make<std::int32_t>({1});
    args_.finish_reason = pool_.make<std::int32_t>({1});
    for (Tensor* tensor : {&args_.move_src, &args_.move_dst, &args_.feature_rows,
                           &args_.feature_positions, &args_.feature_slots})
      *tensor = pool_.make<std::int32_t>({4});
  }

  // The target's choice after each node.
  void choose(const Ints& choices) {
    std::copy(choices.begin(), choices.end(), args_.choices.data<std::int32_t>());
  }
  void accept() { cpu::accept_path(args_, threads_); }
  FinishReason finish() const {
    return static_cast<FinishReason>(args_.finish_reason.data<std::int32_t>()[0]);
  }

  HostTensors pool_;
  ThreadPool threads_{2};
  AcceptPathArgs args_;
};

TEST_F(AcceptPathTest, FollowsAScatteredPathAndMovesItsRows) {
  choose({6, 0, 8, 9, 0, 123});  // root -> node 2 -> node 3 -> node 5 -> bonus 123
  accept();
  EXPECT_EQ(values<std::int32_t>(args_.emitted), (Ints{6, 8, 9, 123}));
  EXPECT_EQ(values<std::int32_t>(args_.accepted_rows), (Ints{0, 2, 3, 5}));
  EXPECT_EQ(values<std::int32_t>(args_.num_emitted), (Ints{4}));
  EXPECT_EQ(finish(), FinishReason::kNone);
  EXPECT_EQ(values<std::int32_t>(args_.context_len), (Ints{14}));
  EXPECT_EQ(values<std::int32_t>(args_.anchors), (Ints{123}));
  const std::int32_t base = kBlock * 64 + 10;
  EXPECT_EQ(values<std::int32_t>(args_.move_src), (Ints{-1, base + 2, base + 3, base + 5}));
  EXPECT_EQ(values<std::int32_t>(args_.move_dst), (Ints{-1, base + 1, base + 2, base + 3}));
  EXPECT_EQ(values<std::int32_t>(args_.feature_rows), (Ints{0, 2, 3, 5}));
  EXPECT_EQ(values<std::int32_t>(args_.feature_positions), (Ints{10, 11, 12, 13}));
  EXPECT_EQ(values<std::int32_t>(args_.feature_slots), (Ints{base, base + 1, base + 2, base + 3}));
  EXPECT_EQ(args_.sampling.history_len.data<std::int32_t>()[0], 15);
  EXPECT_EQ(args_.sampling.history.data<std::int32_t>()[14], 123);
}

TEST_F(AcceptPathTest, AMissAtTheRootStillEmitsTheTargetsToken) {
  choose({77, 0, 0, 0, 0, 0});
  accept();
  EXPECT_EQ(values<std::int32_t>(args_.emitted), (Ints{77, -1, -1, -1}));
  EXPECT_EQ(values<std::int32_t>(args_.accepted_rows), (Ints{0, -1, -1, -1}));
  EXPECT_EQ(values<std::int32_t>(args_.feature_slots)[1], -1);
}

TEST_F(AcceptPathTest, AStopIdInsideThePathTruncates) {
  args_.sampling.stop_ids.data<std::int32_t>()[1] = 8;
  choose({6, 0, 8, 9, 0, 123});
  accept();
  EXPECT_EQ(values<std::int32_t>(args_.emitted), (Ints{6, 8, -1, -1}));
  EXPECT_EQ(values<std::int32_t>(args_.accepted_rows), (Ints{0, 2, -1, -1}));
  EXPECT_EQ(finish(), FinishReason::kStop);
  EXPECT_EQ(values<std::int32_t>(args_.context_len), (Ints{12}));
  EXPECT_EQ(values<std::int32_t>(args_.anchors), (Ints{-1}));
}

TEST_F(AcceptPathTest, MaxTokensTruncatesAndAStopIdWins) {
  args_.sampling.max_tokens.data<std::int32_t>()[0] = 4;  // two were emitted before
  choose({6, 0, 8, 9, 0, 123});
  accept();
  EXPECT_EQ(values<std::int32_t>(args_.num_emitted), (Ints{2}));
  EXPECT_EQ(finish(), FinishReason::kLength);
  args_.sampling.stop_ids.data<std::int32_t>()[0] = 8;
  args_.sampling.history_len.data<std::int32_t>()[0] = 11;
  args_.context_len.data<std::int32_t>()[0] = 10;
  accept();
  EXPECT_EQ(finish(), FinishReason::kStop);
}

TEST_F(AcceptPathTest, ANotFiniteRowEndsTheSequenceAfterWhatCameBefore) {
  choose({6, 0, 8, 9, 0, 123});
  args_.finite.data<std::int32_t>()[3] = 0;  // node 3, reached after two emissions
  accept();
  EXPECT_EQ(values<std::int32_t>(args_.emitted), (Ints{6, 8, -1, -1}));
  EXPECT_EQ(finish(), FinishReason::kNotFinite);
  // A bad row off the path is nobody's fault.
  args_.finite.data<std::int32_t>()[3] = 1;
  args_.finite.data<std::int32_t>()[1] = 0;
  args_.context_len.data<std::int32_t>()[0] = 10;
  accept();
  EXPECT_EQ(finish(), FinishReason::kNone);
}

TEST_F(AcceptPathTest, AnEmptyPlaceIsLeftAlone) {
  args_.trees.counts.data<std::int32_t>()[0] = -1;
  accept();
  EXPECT_EQ(values<std::int32_t>(args_.num_emitted), (Ints{0}));
  EXPECT_EQ(values<std::int32_t>(args_.context_len), (Ints{10}));
  EXPECT_EQ(values<std::int32_t>(args_.feature_rows), (Ints{-1, -1, -1, -1}));
}

// Moves computed one by one from a snapshot.
TEST(MoveKvTest, SourcesMayBeDestinationsOfOtherPairs) {
  HostTensors pool;
  ThreadPool threads(2);
  std::mt19937 rng(3);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<Tensor> planes;
    for (int p = 0; p < 3; ++p) {
      planes.push_back(pool.make<float>({2, 64, 5}));
      for (std::int64_t i = 0; i < planes.back().num_elements(); ++i)
        planes.back().data<float>()[i] = static_cast<float>(1000 * p + i);
    }
    Ints slots(128);
    std::iota(slots.begin(), slots.end(), 0);
    Ints dst = slots;
    std::shuffle(slots.begin(), slots.end(), rng);
    std::shuffle(dst.begin(), dst.end(), rng);
    for (std::size_t i = 0; i < 128; i += 5) slots[i] = dst[i] = -1;
    std::vector<std::vector<float>> expected;
    for (const Tensor& plane : planes) {
      const std::vector<float> before = values<float>(plane);
      std::vector<float> after = before;
      for (std::size_t i = 0; i < 128; ++i)
        for (int c = 0; slots[i] >= 0 && c < 5; ++c)
          after[static_cast<std::size_t>(dst[i] * 5 + c)] =
              before[static_cast<std::size_t>(slots[i] * 5 + c)];
      expected.push_back(after);
    }
    cpu::move_kv({.planes = planes,
                  .src = pool.of<std::int32_t>({128}, slots),
                  .dst = pool.of<std::int32_t>({128}, dst)},
                 threads);
    for (std::size_t p = 0; p < planes.size(); ++p)
      EXPECT_EQ(values<float>(planes[p]), expected[p]);
  }
}

}  // namespace
}  // namespace coppice
