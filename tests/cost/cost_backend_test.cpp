#include "backend/cost/cost_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/build_model.h"
#include "model/load_model.h"
#include "model/shape_source.h"

namespace coppice {
namespace {

TEST(DistinctExpertsTest, UniformFormulaAndOverlap) {
  EXPECT_NEAR(distinct_experts(384, 8, 1, 0), 8, 1e-9);
  EXPECT_NEAR(distinct_experts(384, 8, 8, 0), 59.5, 0.05);
  EXPECT_NEAR(distinct_experts(384, 8, 64, 0), 284.2, 0.05);
  EXPECT_EQ(distinct_experts(384, 8, 0, 0), 0);
  // All rows choose alike: one row's experts. Half of the growth: half way.
  EXPECT_NEAR(distinct_experts(384, 8, 64, 1), 8, 1e-9);
  EXPECT_NEAR(distinct_experts(384, 8, 8, 0.5), 8 + (59.46 - 8) / 2, 0.05);
}

TEST(ExpertLoadsTest, BinsOfEightRowsAddUpToTheDistinctExpertsAndToAllChoices) {
  const std::vector<double> few = expert_loads(384, 8, 8, 0);
  ASSERT_EQ(few.size(), 1u);
  EXPECT_NEAR(few[0], distinct_experts(384, 8, 8, 0), 1e-6);
  // 1024 rows: 21.3 an expert. The mean of Binomial(1024, 1/48) in bins lies within one of them.
  const std::vector<double> many = expert_loads(384, 8, 1024, 0);
  double experts = 0, highest = 0, lowest = 0;
  for (std::size_t i = 0; i < many.size(); ++i) {
    experts += many[i];
    lowest += many[i] * (8.0 * static_cast<double>(i) + 1);
    highest += many[i] * (8.0 * static_cast<double>(i) + 8);
  }
  EXPECT_NEAR(experts, 384, 1e-3);
  EXPECT_LT(lowest, 8 * 1024);
  EXPECT_GT(highest, 8 * 1024);
  EXPECT_GT(many[2], many[0]);
}

TEST(ExpertLoadsTest, RowsThatChooseAlikeFillFewerExperts) {
  const std::vector<double> loads = expert_loads(384, 8, 64, 0.5);
  double experts = 0;
  for (const double count : loads) experts += count;
  EXPECT_NEAR(experts, distinct_experts(384, 8, 64, 0.5), 1e-3);
  EXPECT_LT(loads[0], expert_loads(384, 8, 64, 0)[0]);
  // All alike: eight experts with all rows.
  const std::vector<double> same = expert_loads(384, 8, 64, 1);
  EXPECT_NEAR(same.back(), 8, 1e-6);
  EXPECT_EQ(same.size(), 8u);
}

class CostBackendTest : public ::testing::Test {
 protected:
  CostBackend backend_;
  std::vector<Buffer> buffers_;

  Tensor tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    buffers_.push_back(backend_.allocate(count * size_of(dtype)));
    return buffers_.back().tensor(dtype, shape);
  }
};

TEST_F(CostBackendTest, MemoryHasSizesAndDistinctAddresses) {
  const Buffer a = backend_.allocate(1000), b = backend_.allocate(std::size_t{1} << 40);
  EXPECT_EQ(backend_.allocated_bytes(), 1000 + (std::int64_t{1} << 40));
  const auto begin = reinterpret_cast<std::uintptr_t>(a.data());
  const auto other = reinterpret_cast<std::uintptr_t>(b.data());
  EXPECT_GE(other, begin + 1000);
  {
    const Buffer c = backend_.allocate(24);
    EXPECT_EQ(backend_.allocated_bytes(), 1024 + (std::int64_t{1} << 40));
  }
  EXPECT_EQ(backend_.allocated_bytes(), 1000 + (std::int64_t{1} << 40));
}

TEST_F(CostBackendTest, MemoryIsReservedInThePiecesOfTheDriver) {
  constexpr std::int64_t kMegabyte = 1 << 20;
  const Buffer small = backend_.allocate(1000);
  EXPECT_EQ(backend_.reserved_bytes(), 1024);
  {
    const Buffer large = backend_.allocate(3 * kMegabyte);
    EXPECT_EQ(backend_.reserved_bytes(), 1024 + 4 * kMegabyte);
  }
  EXPECT_EQ(backend_.reserved_bytes(), 1024);
}

TEST_F(CostBackendTest, AProductReadsItsWeightOnce) {
  const HostMatrix matrix{.format = WeightFormat::kF8Block128, .rows = 512, .cols = 256};
  const LinearWeight weight = backend_.load_linear({&matrix, 1});
  backend_.linear({.x = tensor(DType::kBF16, {5, 256}),
                   .weight = &weight,
                   .out = tensor(DType::kF32, {5, 512})});
  const OpCost& cost = backend_.ops().back();
  EXPECT_EQ(cost.kind, CostKind::kDense);
  EXPECT_EQ(cost.weight_bytes, 512 * 256 * 2);  // bf16 on the device
  EXPECT_EQ(cost.activation_bytes, 5 * 256 * 2 + 5 * 512 * 4);
  EXPECT_EQ(cost.flops, 2.0 * 5 * 256 * 512);
}

TEST_F(CostBackendTest, ExpertsStayAsStoredAndPaddedRowsChooseNone) {
  const HostMatrix up{.format = WeightFormat::kInt4Group32, .rows = 256, .cols = 7168};
  const HostMatrix down{.format = WeightFormat::kInt4Group32, .rows = 7168, .cols = 256};
  const std::vector<ExpertSource> sources(384, {.gate = up, .up = up, .down = down});
  const ExpertWeights experts = backend_.load_experts(sources);
  const double expert_bytes = 3.0 * 256 * 7168 * 0.5625;
  EXPECT_NEAR(static_cast<double>(backend_.weight_bytes()), 384 * expert_bytes, 1);
  backend_.set_scenario({.batch = 1, .verify_rows = 5});
  const auto run = [&] {
    backend_.moe_experts({.x = tensor(DType::kBF16, {8, 7168}),
                          .topk_ids = tensor(DType::kI32, {8, 8}),
                          .topk_weights = tensor(DType::kF32, {8, 8}),
                          .experts = &experts,
                          .out = tensor(DType::kBF16, {8, 7168})});
    return backend_.ops().back();
  };
  EXPECT_NEAR(run().weight_bytes, distinct_experts(384, 8, 8, 0) * expert_bytes, 1);
  // In a verify step five of the eight rows hold a node.
  CompileTreeArgs compile;
  compile.row_offsets = tensor(DType::kI32, {2});
  compile.context_len = tensor(DType::kI32, {1});
  compile.token_ids = tensor(DType::kI32, {8});
  compile.path = tensor(DType::kI32, {8, 2});
  backend_.compile_tree(compile);
  EXPECT_NEAR(run().weight_bytes, distinct_experts(384, 8, 5, 0) * expert_bytes, 1);
}

TEST_F(CostBackendTest, UnitsConvertTheWeightsOfAnExpertAgain) {
  const HostMatrix up{.format = WeightFormat::kInt4Group32, .rows = 256, .cols = 7168};
  const HostMatrix down{.format = WeightFormat::kInt4Group32, .rows = 7168, .cols = 256};
  const std::vector<ExpertSource> sources(384, {.gate = up, .up = up, .down = down});
  const ExpertWeights experts = backend_.load_experts(sources);
  // Ten experts with up to eight rows, four with up to 24: at 256 rows a unit holds 16.
  backend_.set_scenario({.batch = 1, .verify_rows = 256, .expert_loads = {10, 0, 4}});
  backend_.moe_experts({.x = tensor(DType::kBF16, {256, 7168}),
                        .topk_ids = tensor(DType::kI32, {256, 8}),
                        .topk_weights = tensor(DType::kF32, {256, 8}),
                        .experts = &experts,
                        .out = tensor(DType::kBF16, {256, 7168})});
  const OpCost& cost = backend_.ops().back();
  const double weights = 3.0 * 256 * 7168;
  EXPECT_EQ(cost.distinct_experts, 14);
  EXPECT_EQ(cost.packed_weights, 14 * weights);
  EXPECT_EQ(cost.unit_weights, (10 + 4 * 2) * weights);
  EXPECT_EQ(cost.column_weights, (10 + 4 * 3) * weights);
}

TEST_F(CostBackendTest, AModelOfAnySizeFitsAndAShardIsAnEqualPart) {
  const auto bytes = [](std::int64_t ranks) {
    CostBackend backend({.num_ranks = ranks});
    ShapeSource source(WeightFormat::kInt4Group32);
    ModelOptions options{.max_rows = 16, .max_positions = 64};
    options.parallel.size = ranks;
    build_model(backend, kimi_k2_config(3, 384), source, options, {});
    return static_cast<double>(backend.weight_bytes());
  };
  EXPECT_GT(bytes(1), 15e9);
  EXPECT_GT(bytes(1) / bytes(8), 4);  // lm_head and what is read by all heads are replicated
  EXPECT_LT(bytes(1) / bytes(8), 8);
}

}  // namespace
}  // namespace coppice
