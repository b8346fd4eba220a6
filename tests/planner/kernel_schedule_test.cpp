// Schedules of kernels as their launchers make them.
#include "planner/kernel_schedule.h"

#include <gtest/gtest.h>

namespace coppice {
namespace {

// Eight heads: a tile holds eight rows. At 8k a chunk is four steps of 64 keys, and the 33rd chunk
// holds one step: that of a tree's own nodes.
TEST(MlaScheduleTest, TilesAreCutForTheMultiprocessors) {
  const MlaSchedule tree = mla_schedule(8, 1, 17, 8192, 132);
  EXPECT_EQ(tree.tiles, 3);
  EXPECT_EQ(tree.fragments, 99);
  EXPECT_EQ(tree.loads, 4);
  EXPECT_EQ(tree.streams, 33);
  EXPECT_EQ(tree.partials, 99);
  // Eight tiles: 16 parts each, of two chunks; the short last chunk is joined to the part before.
  const MlaSchedule wide = mla_schedule(8, 1, 64, 8192, 132);
  EXPECT_EQ(wide.fragments, 128);
  EXPECT_EQ(wide.rounds, 1);
  EXPECT_EQ(wide.loads, 8);
  EXPECT_EQ(wide.partials, 8 * 17);
  // Longer than its steps by a merge and the nodes' pass.
  EXPECT_GT(wide.chain, 8 + 2 + 3);
  EXPECT_LT(wide.chain, 8 + 3 + 6);
}

// 44 teams of three take six chunks each of the 264 of eight trees; equal parts would be of seven.
// Teams that pass from one tree to the next have two fragments and a chunk of one step.
TEST(MlaScheduleTest, TreesAlikeShareALine) {
  const MlaSchedule trees = mla_schedule(8, 8, 17, 8192, 132);
  EXPECT_EQ(trees.fragments, 144);
  EXPECT_EQ(trees.rounds, 2);
  EXPECT_EQ(trees.loads, 24);
  EXPECT_EQ(trees.streams, 44);
  // 64 heads: seven teams of 17, where equal parts took three turns of 64 steps and more.
  const MlaSchedule many = mla_schedule(64, 8, 17, 8192, 132);
  EXPECT_EQ(many.fragments, 14 * 17);
  EXPECT_EQ(many.loads, 152);
  // Single tokens have equal parts, and so has one tree.
  EXPECT_EQ(mla_schedule(8, 8, 1, 8192, 132).fragments, 8 * 16);
  EXPECT_EQ(mla_schedule(64, 1, 17, 8192, 132).rounds, 1);
}

// Clusters of two take a chunk of a single token at a time, up to 36 chunks.
TEST(MlaScheduleTest, SingleTokensWithFewKeysRunInClusters) {
  const MlaSchedule few = mla_schedule(8, 1, 1, 8192, 132);
  EXPECT_EQ(few.fragments, 33);
  EXPECT_GT(few.burst, 129);
  EXPECT_LT(few.chain, 2);
  const MlaSchedule many = mla_schedule(8, 1, 1, 32768, 132);
  EXPECT_EQ(many.fragments, 65);
  EXPECT_EQ(many.burst, 0);
  EXPECT_EQ(many.loads, 8);
  EXPECT_EQ(mla_schedule(8, 8, 1, 8192, 132).burst, 0);
  EXPECT_EQ(mla_schedule(64, 1, 1, 8192, 132).burst, 0);
}

// Warps of the merging kernel take runs of 1, 2, 4 and 8 chunks, and then four merges in pairs; of
// three octets of rows half as many warps take twice as many.
TEST(MlaScheduleTest, MergesFollowTheRunsOfWarps) {
  const auto merges = [](std::int64_t context, std::int64_t rows = 1) {
    return mla_schedule(8, 1, rows, context, 132).merges;
  };
  const double one = merges(1024) / (1 + 4);
  EXPECT_NEAR(merges(4096), (2 + 4) * one, 1e-9);
  EXPECT_NEAR(merges(8192), (4 + 4) * one, 1e-9);
  EXPECT_NEAR(merges(32768), (8 + 4) * one, 1e-9);
  EXPECT_NEAR(merges(8192, 2) / one, 4 + 4, 0.1);
  EXPECT_NEAR(merges(8192, 3) / one, 8 + 3, 0.1);
  // More rows are more blocks, which share the multiprocessors; those of 17 rows wait for the
  // attention to leave where it is on most of them.
  EXPECT_GT(mla_schedule(8, 1, 64, 1024, 132).merges, 2 * merges(1024));
  EXPECT_EQ(mla_schedule(8, 1, 17, 1024, 132).late, 0);
  EXPECT_GT(mla_schedule(8, 1, 17, 8192, 132).late, 0.4);
}

TEST(MlaScheduleTest, NoFragmentIsLongerThanItsShareAndNoWorkIsLost) {
  for (const std::int64_t heads : {8, 64})
    for (const std::int64_t rows : {4, 17, 64, 256})
      for (const std::int64_t context : {1024, 4096, 8192, 32768, 131072}) {
        const MlaSchedule schedule = mla_schedule(heads, 1, rows, context, 132);
        EXPECT_GE(schedule.loads * 132, schedule.tiles * (context / 64))
            << heads << " heads, " << rows << " rows, context " << context;
        EXPECT_LE(schedule.fragments, schedule.rounds * 132);
        EXPECT_GE(schedule.chain, static_cast<double>(schedule.loads));
      }
}

TEST(ProductScheduleTest, ArithmeticOvertakesBytesBetween64And256Rows) {
  const DeviceSpec& device = find_device("h200");
  const double bytes_us = 2.0 * 20480 * 7168 / device.read_tb_s * 1e-6;
  const auto multiply_us = [&](std::int64_t rows) {
    return product_time(rows, 1, 20480, 7168, device).multiply_us;
  };
  EXPECT_LT(multiply_us(64), bytes_us);
  EXPECT_GT(multiply_us(256), bytes_us);
  // 160 tiles on 132 multiprocessors are two waves: more than the products alone.
  EXPECT_GT(multiply_us(256), 1.2 * 2.0 * 256 * 20480 * 7168 / device.bf16_reached * 1e-6);
}

// Four segments each; with 32 rows only the product with short inputs leaves room for pushed sums.
TEST(ProductScheduleTest, PushedSumsNeedNoExchange) {
  const DeviceSpec& device = find_device("h200");
  const auto finish_us = [&](std::int64_t rows, std::int64_t outputs, std::int64_t inputs) {
    return product_time(rows, 1, outputs, inputs, device).finish_us;
  };
  EXPECT_LT(finish_us(8, 2112, 7168), 0.4);
  EXPECT_GT(finish_us(32, 2112, 7168), 0.5);
  EXPECT_LT(finish_us(32, 1536, 1536), 0.5);
  EXPECT_GT(finish_us(64, 1536, 1536), 0.5);
}

}  // namespace
}  // namespace coppice
