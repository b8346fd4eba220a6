// Host choices of the attention and norm kernels: what a result's bits follow from must depend on
// positions and shapes alone, and everything must fit the space set aside for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gqa/gqa_attention_config.h"
#include "kernels/mla/mla_attention_config.h"
#include "kernels/norm/rms_norm_config.h"

namespace coppice::kernels {
namespace {

constexpr int kMaxPositions = 262144;

int log2_steps(const MlaChunkTable& table, int position) {
  for (int i = 0; i < 3; i++)
    if (position < table.until[i]) return table.log2_steps[i];
  return table.log2_steps[3];
}

TEST(MlaConfig, ChunksGrowWithThePositionAndFitTheCombineKernel) {
  for (int heads : {1, 4, 8, 16, 17, 32, 64}) {
    const MlaChunkTable table = mla_chunk_table(heads);
    int previous = 0;
    for (int position = 0; position < kMaxPositions; position += kMlaStepPositions) {
      const int steps = log2_steps(table, position);
      ASSERT_GE(steps, previous) << heads << " heads, position " << position;
      previous = steps;
      // 512: the chunks of one tile that mla_combine can list.
      ASSERT_LE(position / kMlaStepPositions >> steps, 511) << heads << " heads";
    }
  }
}

TEST(MlaConfig, OwnSlotsHoldTheMergeTreeOfTheLongestTile) {
  for (int heads : {8, 64}) {
    const int steps = log2_steps(mla_chunk_table(heads), kMaxPositions - 1);
    EXPECT_LT(kMaxPositions / kMlaStepPositions >> steps, 1 << kMlaOwnSlots);
  }
  // Prompt rows are never cut.
  EXPECT_EQ((kMaxPositions - 1) / kMlaStepPositions >> log2_steps(mla_prompt_chunk_table(), 0), 0);
}

TEST(MlaConfig, ThresholdsLieOnChunkBoundaries) {
  for (int heads : {8, 64}) {
    const MlaChunkTable table = mla_chunk_table(heads);
    for (int i = 0; i < 3; i++)
      EXPECT_EQ(table.until[i] % (kMlaStepPositions << table.log2_steps[i + 1]), 0);
  }
}

TEST(MlaConfig, PaddedHeadsDivideATile) {
  for (int heads = 1; heads <= kMlaTileRows; heads++) {
    const int padded = mla_padded_heads(heads);
    EXPECT_GE(padded, heads);
    EXPECT_EQ(padded % 8, 0);
    EXPECT_EQ(kMlaTileRows % padded, 0);
    EXPECT_TRUE(padded == 8 || padded / 2 < heads);
  }
}

TEST(MlaConfig, OnlyTheLargeShapeUsesTensorCores) {
  EXPECT_TRUE(mla_uses_tensor_cores(8, 512, 64));
  EXPECT_TRUE(mla_uses_tensor_cores(64, 512, 64));
  EXPECT_FALSE(mla_uses_tensor_cores(128, 512, 64));
  EXPECT_FALSE(mla_uses_tensor_cores(8, 128, 32));
}

TEST(MlaConfig, WorkspacePartsAreApartAndAligned) {
  for (int rows : {1, 17, 1024})
    for (int max_path : {1, 16, 64, 65}) {
      const MlaWorkspaceLayout l = mla_workspace_layout(rows, max_path, 132);
      const std::vector<size_t> parts = {l.header, l.fragments,  l.tiles, l.tile_of_row,
                                         l.passes, l.slot_stats, l.slots, l.total};
      for (size_t i = 0; i + 1 < parts.size(); i++) EXPECT_LT(parts[i], parts[i + 1]);
      for (size_t part : parts) EXPECT_EQ(part % 256, 0u);
      // Tail steps of a tile: the longest path from any offset in a step, table lengths that differ
      // by up to seven inside a tile.
      EXPECT_GE(l.passes_per_row, (max_path + 7 + kMlaStepPositions - 1) / kMlaStepPositions + 1);
      EXPECT_GE(l.total - l.slots, size_t{132} * kMlaSlotsPerCta * kMlaTileRows * 512 * 2);
      EXPECT_GE(kMlaSlotsPerCta, kMlaOwnSlots);
    }
}

TEST(GqaConfig, GroupsPadToPowersOfTwo) {
  EXPECT_EQ(gqa_padded_group(9, 3), 4);
  EXPECT_EQ(gqa_padded_group(8, 8), 1);
  EXPECT_EQ(gqa_padded_group(32, 8), 4);
  EXPECT_EQ(gqa_padded_group(16, 1), 16);
}

void expect_launch_fits(const GqaShape& shape, bool has_clusters) {
  // Of a block, on sm_90 and on the smaller GPUs without clusters (sm_86, sm_89).
  const size_t most_shared = has_clusters ? 232448 : 101376;
  const GqaLaunch l = gqa_launch(shape, has_clusters);
  const int padded = gqa_padded_group(shape.num_heads, shape.num_kv_heads);
  SCOPED_TRACE(std::to_string(shape.num_rows) + " rows, " + std::to_string(shape.num_heads) +
               " heads over " + std::to_string(shape.num_kv_heads) + " of " +
               std::to_string(shape.head_dim) + (has_clusters ? ", clusters" : ""));
  EXPECT_EQ(1 << l.log2_group, padded);
  EXPECT_EQ(l.blocks, has_clusters ? kGqaParts : 1);
  EXPECT_TRUE(l.rows_of_tile == 0 || has_clusters);
  EXPECT_LE(l.rows_of_tile * padded, kGqaTileRows);
  EXPECT_LE(l.tiles, kGqaMaxTiles);
  if (has_clusters) {  // the rows of a sequence find room in the tiles
    EXPECT_GE(l.tiles * kGqaTileRows,
              std::min(shape.num_rows / shape.num_seqs * padded, kGqaMaxTiles * kGqaTileRows));
  }
  EXPECT_LE(l.threads(), kGqaMaxThreads);
  EXPECT_LE(l.shared_bytes, most_shared);
  EXPECT_EQ(l.stages & (l.stages - 1), 0);  // rings wrap by masks
  EXPECT_GE(l.clusters, 1);
  EXPECT_GE(l.windows * kGqaWindowRows, shape.num_rows);
  EXPECT_GE(l.max_chunks * kGqaChunkPositions, shape.max_kv_len);
  EXPECT_TRUE(!l.split || shape.num_rows * shape.num_heads <= kGqaSplitRows);
  EXPECT_TRUE(!l.split || l.max_chunks > 1);
}

TEST(GqaConfig, LaunchesFitTheGpuAndTheWorkspace) {
  constexpr std::pair<int, int> kHeads[] = {{1, 1}, {8, 1}, {8, 8}, {9, 3}, {32, 8}, {64, 4}};
  for (const int rows : {1, 2, 8, 17, 65, 136, 256, 257, 5000})
    for (const auto& [heads, kv_heads] : kHeads)
      for (const int head_dim : {64, 128})
        for (const int length : {1, 511, 512, 513, 8192, 40960})
          for (const int seqs : {1, 8, 256})
            for (const int max_path : {1, 16})
              for (const bool has_clusters : {false, true})
                expect_launch_fits({.num_rows = rows,
                                    .num_seqs = seqs,
                                    .num_heads = heads,
                                    .num_kv_heads = kv_heads,
                                    .head_dim = head_dim,
                                    .max_kv_len = length,
                                    .max_path = max_path},
                                   has_clusters);
  EXPECT_EQ(gqa_max_chunks(0), 1);
  EXPECT_EQ(gqa_max_chunks(kGqaChunkPositions + 1), 2);
}

TEST(GqaConfig, FewRowsOfASequenceStageTheirOwnKeys) {
  const auto rows_of_tile = [](int rows, int seqs, int max_path) {
    return gqa_launch({.num_rows = rows,
                       .num_seqs = seqs,
                       .num_heads = 8,
                       .num_kv_heads = 1,
                       .head_dim = 128,
                       .max_kv_len = 8192,
                       .max_path = max_path},
                      true)
        .rows_of_tile;
  };
  EXPECT_EQ(rows_of_tile(64, 64, 16), 1);  // decoding
  EXPECT_EQ(rows_of_tile(8, 1, 1), 2);     // blocks of a drafter
  EXPECT_EQ(rows_of_tile(64, 8, 1), 2);
  EXPECT_EQ(rows_of_tile(7, 1, 1), 2);
  EXPECT_EQ(rows_of_tile(14, 2, 1), 0);  // a tile would have rows of two sequences
  EXPECT_EQ(rows_of_tile(8, 1, 16), 0);  // a tree
  EXPECT_EQ(rows_of_tile(17, 1, 1), 0);  // a prompt
}

TEST(NormConfig, ThreadsAreWholeWarpsAndAVectorEach) {
  for (int hidden : {8, 128, 256, 512, 576, 1536, 7168, 8192, 18432, 65536}) {
    const int threads = rms_norm_threads(hidden);
    EXPECT_EQ(threads % 32, 0);
    EXPECT_LE(threads, 1024);
    EXPECT_TRUE(hidden > 8192 || threads * 8 >= hidden);
  }
}

}  // namespace
}  // namespace coppice::kernels
