// Memory is planned and refused before anything is loaded.
#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/engine/support/tiny_engine.h"

namespace coppice {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

EngineConfig config() {
  EngineConfig config;
  config.model = "k2";
  config.max_num_seqs = 8;
  config.max_verify_rows = 512;
  return config;
}

MemoryDemand demand() {
  return {.weights = 70 * kGiB,
          .drafter_weights = 4 * kGiB,
          .token_bytes = 61 * 576 * 2,
          .drafter_token_bytes = 6 * 2 * 1024 * 2,
          .vocab_size = 163840,
          .max_model_len = 262144,
          .draft_rows = 7};
}

TEST(MemoryPlanTest, ARankHoldsItsShareAndWhatIsWholeOnEach) {
  EngineConfig config;
  config.model = testing::kTinyK2;
  config.speculative_model = testing::kTinyK2Dflash;
  const MemoryDemand alone = memory_demand(config, DType::kBF16);
  config.tensor_parallel_size = 2;
  const MemoryDemand rank = memory_demand(config, DType::kBF16);
  const std::int64_t embedding = 5376 * 384 * 2;
  EXPECT_GT(rank.weights, (alone.weights + embedding) / 2);
  EXPECT_LT(rank.weights, alone.weights);
  EXPECT_EQ(rank.drafter_weights, alone.drafter_weights / 2);
  EXPECT_EQ(rank.token_bytes, alone.token_bytes);  // MLA: every head reads all of the latent
  EXPECT_EQ(rank.drafter_token_bytes, alone.drafter_token_bytes / 2);
}

TEST(MemoryPlanTest, TheCacheTakesWhatIsLeft) {
  const std::size_t free = 139 * static_cast<std::size_t>(kGiB);
  const MemoryPlan plan = plan_memory(config(), demand(), {free, free});
  EXPECT_LE(plan.total(), 139 * kGiB / 100 * 95 + 1);
  EXPECT_GT(plan.total(), 139 * kGiB / 100 * 94);
  // With more than enough: every sequence at its longest, and no more.
  const MemoryPlan most = plan_memory(config(), demand(), {10 * free, 10 * free});
  EXPECT_EQ(most.cache, 8 * (262144 + 256) * demand().token_bytes);
}

TEST(MemoryPlanTest, WhatTheConfigurationSaysIsKept) {
  EngineConfig asked = config();
  asked.num_kv_blocks = 100;
  const std::size_t free = 139 * static_cast<std::size_t>(kGiB);
  EXPECT_EQ(plan_memory(asked, demand(), {free, free}).cache, 6400 * demand().token_bytes);
}

TEST(MemoryPlanTest, RefusesWithEveryPartAndWhatIsFree) {
  const std::size_t free = 80 * static_cast<std::size_t>(kGiB);
  try {
    plan_memory(config(), demand(), {free, free});
    FAIL() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    const std::string what = error.what();
    for (const char* part : {"k2: does not fit", "weights 70.00", "drafter 4.00", "cache 17.17",
                             "80.00 of 80.00 GiB", "max_model_len"})
      EXPECT_NE(what.find(part), std::string::npos) << part << " is not in: " << what;
  }
}

TEST(MemoryPlanTest, SizesComeFromTheFilesHeaders) {
  EngineConfig tiny = config();
  tiny.model = testing::kTinyK2;
  tiny.speculative_model = testing::kTinyK2Dflash;
  const MemoryDemand demand = memory_demand(tiny, DType::kBF16);
  EXPECT_GT(demand.weights, 20'000'000);
  EXPECT_GT(demand.drafter_weights, 1'000'000);
  EXPECT_EQ(demand.vocab_size, 5376);
  EXPECT_EQ(demand.draft_rows, 7);
  EXPECT_EQ(demand.token_bytes % (160 * 2), 0);
}

}  // namespace
}  // namespace coppice
