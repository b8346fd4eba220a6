// Tensor parallelism: ranks as threads that sum partial results in rank order.
#include <gtest/gtest.h>

#include "backend/factory/make_backend.h"
#include "comm/rank_threads.h"
#include "model/load_model.h"
#include "tests/io/support/files.h"
#include "tests/model/support/checkpoint_files.h"
#include "tests/support/golden_file.h"
#include "tests/support/model_driver.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;

const std::vector<std::int32_t> kPrompt = {5, 17, 299, 0, 42, 42, 7, 256, 1, 2, 3};

using MakeModel = std::function<std::unique_ptr<Model>(Backend&, const ModelOptions&)>;

// Logits of every rank.
std::vector<std::vector<float>> run_ranks(std::int64_t size, const MakeModel& make) {
  RankThreads threads(size);
  std::vector<std::vector<float>> logits(static_cast<std::size_t>(size));
  threads.run([&](std::int64_t rank) {
    const auto backend = make_backend(
        {.device = "cpu-reference", .num_threads = 1, .communicator = &threads.communicator(rank)});
    const auto model =
        make(*backend, {.max_rows = 16, .max_positions = 128, .parallel = {rank, size}});
    testing::ModelDriver driver(*backend, *model, 64);
    logits[static_cast<std::size_t>(rank)] = driver.prefill(kPrompt, 16).logits;
  });
  return logits;
}

void expect_same_at(std::initializer_list<std::int64_t> sizes, const MakeModel& make) {
  const std::vector<float> alone = run_ranks(1, make)[0];
  for (const std::int64_t size : sizes) {
    SCOPED_TRACE("size " + std::to_string(size));
    const auto ranks = run_ranks(size, make);
    EXPECT_LT(testing::relative_error(ranks[0], alone), 2e-5);
    for (const std::vector<float>& rank : ranks) EXPECT_EQ(rank, ranks[0]);
  }
}

TEST(Parallel, TinyK2) {
  expect_same_at({2, 4}, [](Backend& backend, const ModelOptions& options) {
    return load_model(backend, testing::kTinyK2, options);
  });
}

TEST(Parallel, Qwen3) {
  expect_same_at({2}, [](Backend& backend, const ModelOptions& options) {
    return make_random_model(backend, test::small_qwen3_config(), 5, options);
  });
}

TEST(Parallel, UnevenSplitsAreRefused) {
  const auto refuse = [](const ModelConfig& config, std::int64_t size) {
    return error_of(ErrorKind::kUnsupported, [&] { check_parallel(config, {0, size}); });
  };
  ModelConfig smollm2 = test::small_qwen3_config();
  smollm2.num_attention_heads = 9;
  smollm2.num_key_value_heads = 3;
  expect_contains(refuse(smollm2, 2), {"2", "num_attention_heads 9"});
  check_parallel(smollm2, {0, 1});

  ModelConfig odd = test::small_qwen3_config();
  odd.vocab_size += 1;
  expect_contains(refuse(odd, 2), {"vocab_size " + std::to_string(odd.vocab_size)});

  const ModelConfig kimi = kimi_k2_config(2, 8);
  for (const std::int64_t size : {1, 2, 4, 8, 16, 32, 64}) check_parallel(kimi, {size - 1, size});
  ModelConfig narrow = kimi;
  narrow.moe_intermediate_size = 128;  // as tiny-k2: 8 ranks would cut a group of 32
  check_parallel(narrow, {0, 4});
  expect_contains(refuse(narrow, 8), {"moe_intermediate_size 128", "32"});
  ModelConfig drafter = test::small_dflash_config().network;
  expect_contains(refuse(drafter, 4), {"num_key_value_heads 2"});
}

}  // namespace
}  // namespace coppice
