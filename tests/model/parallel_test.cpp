// Tensor parallelism: ranks as threads that sum partial results in rank order.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "backend/factory/make_backend.h"
#include "model/load_model.h"
#include "tests/io/support/files.h"
#include "tests/model/support/checkpoint_files.h"
#include "tests/support/golden_file.h"
#include "tests/support/model_driver.h"
#include "tests/support/spy_backend.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;

// What the ranks of one group share.
struct Exchange {
  explicit Exchange(std::int64_t size) : parts(static_cast<std::size_t>(size)), barrier(size) {}
  std::vector<std::vector<float>> parts;
  std::barrier<> barrier;
};

class RankBackend : public testing::SpyBackend {
 public:
  RankBackend(Exchange& exchange, std::int64_t rank)
      : SpyBackend(make_backend({.device = "cpu-reference", .num_threads = 1})),
        exchange_(exchange),
        rank_(static_cast<std::size_t>(rank)) {}

  void all_reduce(const AllReduceArgs& args) override {
    std::vector<float>& mine = exchange_.parts[rank_];
    mine.resize(static_cast<std::size_t>(args.x.num_elements()));
    download(mine.data(), args.x);
    exchange_.barrier.arrive_and_wait();
    std::vector<float> sum(mine.size(), 0.0f);
    for (const std::vector<float>& part : exchange_.parts)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    exchange_.barrier.arrive_and_wait();
    upload(args.x, sum.data());
  }

 private:
  Exchange& exchange_;
  std::size_t rank_;
};

const std::vector<std::int32_t> kPrompt = {5, 17, 299, 0, 42, 42, 7, 256, 1, 2, 3};

using MakeModel = std::function<std::unique_ptr<Model>(Backend&, const ModelOptions&)>;

// Logits of every rank.
std::vector<std::vector<float>> run_ranks(std::int64_t size, const MakeModel& make) {
  Exchange exchange(size);
  std::vector<std::vector<float>> logits(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      RankBackend backend(exchange, rank);
      const auto model =
          make(backend, {.max_rows = 16, .max_positions = 128, .parallel = {rank, size}});
      testing::ModelDriver driver(backend, *model, 64);
      logits[static_cast<std::size_t>(rank)] = driver.prefill(kPrompt, 16).logits;
    });
  for (std::thread& thread : threads) thread.join();
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
