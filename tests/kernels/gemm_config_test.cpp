// Host choices of the dense products: the cut of the inputs follows from the weight's shape, tiles
// cover all outputs and tokens and fit a multiprocessor.
#include <gtest/gtest.h>

#include "kernels/gemm/skinny_gemm_config.h"

namespace coppice::kernels {
namespace {

constexpr size_t kBarriers = 1024;
constexpr SkinnyGemmDevice kH200 = {.num_sms = 132, .max_shared_bytes = 232448};

struct Shape {
  int heads, outputs, inputs;
};
constexpr Shape kShapes[] = {{1, 2112, 7168},   {1, 384, 7168},   {1, 7168, 1024}, {1, 7168, 256},
                             {8, 512, 128},     {1, 4608, 7168},  {64, 128, 512},  {1, 20480, 7168},
                             {1, 163840, 7168}, {1, 12288, 1536}, {1, 192, 384},   {3, 48, 576},
                             {1, 16, 64}};

TEST(GemmConfig, SegmentsAreNeverEmptyAndFitACluster) {
  for (const Shape& s : kShapes) {
    const int segments = skinny_gemm_segments(s.heads, s.outputs, s.inputs);
    EXPECT_GE(segments, 1);
    EXPECT_LE(segments, kSkinnyMaxSegments);
    EXPECT_GE(s.inputs / kSkinnyStepInputs, segments);
  }
}

TEST(GemmConfig, TilesCoverTheProductAndFitSharedMemory) {
  for (const Shape& s : kShapes) {
    const int segments = skinny_gemm_segments(s.heads, s.outputs, s.inputs);
    for (int tokens = 1; tokens < 3000; tokens += tokens < 300 ? 1 : 97) {
      const SkinnyGemmTiles t = skinny_gemm_tiles(tokens, s.heads, s.outputs, s.inputs, kH200);
      EXPECT_GE(t.chunks * t.columns, tokens);
      EXPECT_GE(t.head_tiles * t.outputs, s.outputs);
      EXPECT_LE(t.outputs, 64 * t.warpgroups);
      EXPECT_EQ(t.outputs % 8, 0);  // whole atoms of the swizzle
      EXPECT_LE(t.copied_rows, t.columns);
      EXPECT_GE(t.chunks * t.copied_rows, tokens);
      EXPECT_GE(t.stages, 1);
      EXPECT_LE(t.stages, 32);  // barriers set aside
      EXPECT_LE((t.stages - 1) * segments, s.inputs / kSkinnyStepInputs);
      EXPECT_LE(t.shared_bytes, kH200.max_shared_bytes);
      // Products of whole warpgroups read within the block's shared memory.
      const int rows = (t.stages - 1) * (t.outputs + t.columns) + 64 * t.warpgroups;
      EXPECT_LE(kBarriers + 128 * static_cast<size_t>(rows), t.shared_bytes);
    }
  }
}

// 20480 outputs of lm_head, a TP-8 rank's, are two and a half waves of tiles of 64.
TEST(GemmConfig, AWideProductIsOneWave) {
  for (const int tokens : {1, 8, 17, 64, 128}) {
    const SkinnyGemmTiles t = skinny_gemm_tiles(tokens, 1, 20480, 7168, kH200);
    EXPECT_EQ(t.chunks, 1);
    EXPECT_LE(t.head_tiles, kH200.num_sms);
    EXPECT_GE(t.head_tiles, kH200.num_sms * 9 / 10);
  }
}

// 7168 outputs are 112 blocks. Where two fit on a multiprocessor some share one while others are
// idle.
TEST(GemmConfig, FewLongBlocksTakeAMultiprocessorEach) {
  const auto alone = [](int tokens, int inputs) {
    const SkinnyGemmTiles t = skinny_gemm_tiles(tokens, 1, 7168, inputs, kH200);
    EXPECT_LE(t.head_tiles * t.chunks, kH200.num_sms);
    return 2 * t.shared_bytes > kH200.max_shared_bytes;
  };
  for (const int tokens : {1, 8, 17, 64, 128}) {
    for (const int inputs : {5376, 8192, 18432, 28672}) EXPECT_TRUE(alone(tokens, inputs));
  }
  EXPECT_FALSE(alone(1, 2048));  // short: the next kernel's weights come meanwhile
}

TEST(GemmConfig, PushedSumsLieBehindTheStages) {
  int pushed = 0;
  for (const Shape& s : kShapes) {
    const int segments = skinny_gemm_segments(s.heads, s.outputs, s.inputs);
    for (int tokens = 1; tokens <= 64; ++tokens) {
      const SkinnyGemmTiles t = skinny_gemm_tiles(tokens, s.heads, s.outputs, s.inputs, kH200);
      if (t.pushed_at == 0) continue;
      pushed++;
      EXPECT_GT(segments, 1);
      EXPECT_LE(t.columns, kSkinnyMostPushed);
      const size_t stage = 128 * static_cast<size_t>(t.outputs + t.columns);
      EXPECT_GE(t.pushed_at, static_cast<size_t>(t.stages) * stage);
      const int kept = (t.copied_rows + segments - 1) / segments;
      const auto sums = static_cast<size_t>(segments * kept * 64 * t.warpgroups);
      EXPECT_LE(kBarriers + t.pushed_at + sums * sizeof(float), t.shared_bytes);
    }
  }
  EXPECT_GT(pushed, 0);
}

}  // namespace
}  // namespace coppice::kernels
