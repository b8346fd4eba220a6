// Schedules of kernels as their launchers make them.
#include "planner/kernel_schedule.h"

#include <gtest/gtest.h>

namespace coppice {
namespace {

// Eight heads: a tile holds eight rows. At 8k a chunk is four steps of 64 keys, and the 33rd chunk
// holds one step.
TEST(MlaScheduleTest, TilesAreCutForTheMultiprocessors) {
  const MlaSchedule one = mla_schedule(8, 1, 1, 8192, 132);
  EXPECT_EQ(one.tiles, 1);
  EXPECT_EQ(one.fragments, 33);
  EXPECT_EQ(one.steps, 4);
  const MlaSchedule tree = mla_schedule(8, 1, 17, 8192, 132);
  EXPECT_EQ(tree.tiles, 3);
  EXPECT_EQ(tree.fragments, 99);
  EXPECT_EQ(tree.steps, 4);
  // Eight tiles: 16 parts each, of two chunks; the short last chunk is joined to the part before.
  const MlaSchedule wide = mla_schedule(8, 1, 64, 8192, 132);
  EXPECT_EQ(wide.fragments, 128);
  EXPECT_EQ(wide.rounds, 1);
  EXPECT_EQ(wide.steps, 10);
}

// Time grows in steps, not with the context: what a line between two contexts misses.
TEST(MlaScheduleTest, NoFragmentIsLongerThanItsShareAndNoWorkIsLost) {
  for (const std::int64_t heads : {8, 64})
    for (const std::int64_t rows : {1, 4, 17, 64, 256})
      for (const std::int64_t context : {1024, 4096, 8192, 32768, 131072}) {
        const MlaSchedule schedule = mla_schedule(heads, 1, rows, context, 132);
        EXPECT_GE(schedule.rounds * schedule.steps * 132, schedule.tiles * (context / 64))
            << heads << " heads, " << rows << " rows, context " << context;
        EXPECT_LE(schedule.fragments, schedule.rounds * 132);
        EXPECT_GE(schedule.critical_steps(), static_cast<double>(schedule.steps));
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

}  // namespace
}  // namespace coppice
