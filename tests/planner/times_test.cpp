// Fits of measured times, and the files they come from.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "planner/round_file.h"

namespace coppice {
namespace {

TEST(CostFitTest, FindsTheParametersAndPassesThroughThePoints) {
  std::vector<CostPoint> points;
  const auto us_of = [](double memory, double serial) { return 3 + 1.25 * memory + 2 * serial; };
  for (const double rows : {1.0, 8.0, 64.0})
    for (const double memory : {4.0, 40.0})
      points.push_back({.at = {.launches = 1,
                               .memory_us = memory,
                               .serial_us = rows / 10,
                               .rows = rows,
                               .context = memory},
                        .us = us_of(memory, rows / 10)});
  const CostFit fit(points);
  // What is expected of a stream pulls a little.
  EXPECT_NEAR(fit.fixed_us(), 3, 0.01);
  EXPECT_NEAR(fit.stream(), 1.25, 0.01);
  EXPECT_NEAR(fit.serial(), 2, 0.01);
  const CostFit::Parts other =
      fit.predict({.launches = 1, .memory_us = 20, .serial_us = 1.7, .rows = 17, .context = 20});
  EXPECT_NEAR(other.fixed_us + other.memory_us + other.math_us, us_of(20, 1.7), 0.01);
}

TEST(CostFitTest, NothingIsFasterThanItsBytesAndNothingIsNegative) {
  // Time falls with more bytes: no honest fit does that.
  const CostFit fit({{.at = {.launches = 1, .memory_us = 5, .rows = 1}, .us = 20},
                     {.at = {.launches = 1, .memory_us = 10, .rows = 8}, .us = 15}});
  EXPECT_GE(fit.stream(), 1);
  EXPECT_GE(fit.fixed_us(), 0);
  EXPECT_GE(fit.serial(), 1);
}

TEST(CostFitTest, ResidualsAreInterpolatedInRows) {
  // A bump at 8 rows that the three terms cannot follow.
  std::vector<CostPoint> points;
  for (const auto& [rows, us] : {std::pair(1.0, 10.0), std::pair(8.0, 16.0), std::pair(64.0, 10.0)})
    points.push_back({.at = {.launches = 1, .memory_us = 1, .rows = rows}, .us = us});
  const CostFit fit(points);
  const auto at = [&](double rows) {
    const CostFit::Parts parts = fit.predict({.launches = 1, .memory_us = 1, .rows = rows});
    return parts.fixed_us + parts.memory_us + parts.math_us;
  };
  EXPECT_NEAR(at(8), 16, 1e-9);
  EXPECT_NEAR(at(64), 10, 1e-9);
  EXPECT_NEAR(at(256), 10, 1e-9);
  EXPECT_GT(at(4), 10);
  EXPECT_LT(at(4), 16);
}

// Single tokens run in another kernel: what is left at one row says nothing about two.
TEST(CostFitTest, ResidualsOfAnotherFormAreLeftOut) {
  std::vector<CostPoint> points;
  for (const auto& [rows, us] : {std::pair(1.0, 5.0), std::pair(8.0, 10.0), std::pair(64.0, 10.0)})
    points.push_back(
        {.at = {.launches = 1, .memory_us = 1, .rows = rows, .form = rows == 1 ? 1 : 0}, .us = us});
  const CostFit fit(points);
  EXPECT_NEAR(fit.predict({.launches = 1, .memory_us = 1, .rows = 2}).us(), 10, 1e-9);
  EXPECT_NEAR(fit.predict({.launches = 1, .memory_us = 1, .rows = 1, .form = 1}).us(), 5, 1e-9);
}

// Every shipped point comes back: what the plan says of a measured kernel is what was measured.
TEST(KernelTimesTest, ShippedPointsComeBack) {
  const KernelTimes& times = KernelTimes::shipped();
  ASSERT_GT(times.measured().size(), 100u);
  for (const MeasuredKernel& kernel : times.measured()) {
    OpCost cost = cost_of(kernel);
    cost.op = kernel.op.c_str();
    EXPECT_NEAR(times.time(cost, times.device(), 1).us() / kernel.us, 1, 0.12)
        << kernel.op << " " << kernel.outputs << " x " << kernel.inputs << ", rows " << kernel.rows
        << ", context " << kernel.context << " x " << kernel.sequences;
  }
}

TEST(KernelTimesTest, FasterMemoryShortensTheStreamOnly) {
  const KernelTimes& times = KernelTimes::shipped();
  const OpCost cost = cost_of({.op = "moe_experts",
                               .rows = 64,
                               .outputs = 256,
                               .inputs = 7168,
                               .num_experts = 384,
                               .top_k = 8});
  const OpTime here = times.time(cost, find_device("h200"), 8);
  const OpTime there = times.time(cost, find_device("b200"), 8);
  EXPECT_EQ(here.limit(), Limit::kMemory);
  // Nearly: the larger cache keeps more of the rows' sums.
  EXPECT_NEAR(here.memory_us / there.memory_us, 7.29 / 4.61, 0.005);
  EXPECT_NEAR(here.fixed_us, there.fixed_us, 1e-9);
}

// Shapes that the tensor-core kernel does not take go through their keys one by one: tiny-k2's took
// 340 us a layer at 1k with 1 and 8 rows, 631 with 64, 1344 at 4k.
TEST(KernelTimesTest, ThePlainAttentionIsAsSlowAsItIs) {
  const KernelTimes& times = KernelTimes::shipped();
  const auto us = [&](std::int64_t rows, std::int64_t context) {
    OpCost cost = cost_of({.op = "mla_attention",
                           .rows = rows,
                           .outputs = 128,
                           .inputs = 160,
                           .heads = 8,
                           .sequences = 1,
                           .context = context});
    return times.time(cost, times.device(), 1).us();
  };
  EXPECT_NEAR(us(1, 1024) / 340, 1, 0.1);
  EXPECT_NEAR(us(8, 1024) / 342, 1, 0.1);
  EXPECT_NEAR(us(64, 1024) / 631, 1, 0.12);
  EXPECT_NEAR(us(8, 4096) / 1351, 1, 0.1);
}

// Keys of as many sequences as there are multiprocessors come at the same time, and no more: where
// each does two fragments in turn, the second waits.
TEST(KernelTimesTest, AttentionGrowsWithSequences) {
  const KernelTimes& times = KernelTimes::shipped();
  for (const std::int64_t context : {8192, 32768}) {
    double before = 0;
    for (std::int64_t sequences = 4; sequences <= 64; sequences += 4) {
      OpCost cost = cost_of({.op = "mla_attention",
                             .rows = sequences,
                             .outputs = 512,
                             .inputs = 576,
                             .heads = 8,
                             .sequences = sequences,
                             .context = context});
      const double us = times.time(cost, times.device(), 1).us();
      EXPECT_GT(us, 0.98 * before) << sequences << " sequences at " << context;
      before = us;
    }
  }
}

class TimesFileTest : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    const auto path = std::filesystem::temp_directory_path() /
                      ("coppice_times_" + std::to_string(::getpid()) + ".json");
    std::ofstream(path) << text;
    return path.string();
  }
  static constexpr const char* kHead =
      R"("device":{"name":"NVIDIA H200"},"read_gb_per_s":4500.0,"fixed_us":1.7,"node_us":0.7,)";
};

TEST_F(TimesFileTest, KernelsReplaceTheShippedOnes) {
  const std::string path = write(std::string(R"({"schema":"coppice-bench-kernels-1",)") + kHead +
                                 R"("tensor_tflops":null,"cases":[
    {"key":"experts tp8 M=1","kernel":"moe_experts","shape":{"network":"tp8","rows":1,"experts":384,"top_k":8,"hidden_size":7168,"intermediate_size":256},"us":12.5},
    {"key":"mla tp8 B=2 L=1024 T=3","kernel":"mla_attention","shape":{"network":"tp8","num_heads":8,"batch":2,"context":1024,"tree":3},"us":11.0},
    {"key":"wrong","kernel":"linear","shape":{"rows":1,"outputs":64,"inputs":64,"num_heads":1},"us":1.0,"wrong":true},
    {"key":"attention block","kernel":"attention block","shape":{"rows":1},"us":40.0}]})");
  const KernelTimes times = KernelTimes::from_file(path);
  ASSERT_EQ(times.measured().size(), 2u);
  EXPECT_EQ(times.device().name, "h200");
  EXPECT_EQ(times.device().read_tb_s, 4.5);
  EXPECT_EQ(times.device().bf16_reached, 793);
  EXPECT_EQ(times.measured()[1].rows, 6);
  OpCost cost = cost_of(times.measured()[0]);
  EXPECT_NEAR(times.time(cost, times.device(), 1).us(), 12.5, 1e-6);
}

TEST_F(TimesFileTest, DamagedFilesAreNamed) {
  for (
      const char* text :
      {"{}", R"({"schema":"something"})",
       R"({"schema":"coppice-bench-kernels-1","device":{"name":"Radeon VII"},"read_gb_per_s":1.0,"cases":[]})",
       R"({"schema":"coppice-bench-kernels-1","device":{"name":"NVIDIA H200"},"read_gb_per_s":1.0,"cases":[]})",
       R"({"schema":"coppice-bench-round-1"})"}) {
    const std::string path = write(text);
    try {
      times_from_file(path);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

// Rounds made up from the shipped kernels: a calibration on some of them predicts the others.
TEST_F(TimesFileTest, RoundsCalibrateThePartsThatWereMeasured) {
  std::string rounds;
  for (const int batch : {1, 8, 64}) {
    rounds += rounds.empty() ? "" : ",";
    const std::string n = std::to_string(batch);
    const double experts = 1000.0 + 10 * batch;
    rounds += R"({"context":1024,"batch":)" + n + R"(,"rows":)" + n +
              R"(,"mode":"graph","drafting":false,"committed_tokens":)" + (batch == 8 ? "3" : "1") +
              R"(,"total_us":5000,"stages":{"commit":9.0},"verify":{"experts":)" +
              std::to_string(experts) + "}}";
  }
  const std::string path = write(std::string(R"({"schema":"coppice-bench-round-1",)") + kHead +
                                 R"("model":{"layers":4,"tp":8,"hidden_size":7168,"num_heads":8,
    "n_routed_experts":384,"num_experts_per_tok":8,"moe_intermediate_size":256,"vocab_size":20480,"drafter":null},
    "memory":{"weights_bytes":1.0,"total_bytes":2.0},"rounds":[)" +
                                 rounds + "]}");
  const RoundFile file = read_round_file(path);
  ASSERT_EQ(file.rounds.size(), 3u);
  NetworkOnPaper network = network_of(file);
  const RoundTimes times = times_from_file(path);
  for (const MeasuredRound& round : file.rounds) {
    const CountedRound counted = count_round(round, network, {});
    const RoundTime time = times.time(counted, file.device, 1);
    EXPECT_NEAR(time[Part::kExperts].us(), round.us.at(Part::kExperts), 0.01);
    EXPECT_NEAR(time[Part::kCommit].us(), 9, 0.01);
    EXPECT_GT(time[Part::kDense].us(), 0);  // not in the file: from the kernels
    // Two of three committed tokens move.
    EXPECT_EQ(counted.totals(Part::kCommit).kv_bytes > 0, round.batch == 8);
  }
}

}  // namespace
}  // namespace coppice
