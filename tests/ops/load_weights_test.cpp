// Weights come to a device in pieces: a matrix of many pieces must arrive whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/factory/make_backend.h"
#include "base/error.h"
#include "base/half.h"

namespace coppice {
namespace {

constexpr std::int64_t kRows = 9001, kCols = 4096;  // 74 MB, more than all buffers on the way

float value_of(std::int64_t row, std::int64_t col) {
  return static_cast<float>((row * 7 + col * 13) % 251 - 125);  // exact in bf16
}

class LoadWeightsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(LoadWeightsTest, AMatrixOfManyPiecesArrivesWhole) {
  std::unique_ptr<Backend> backend;
  try {
    backend = make_backend({.device = GetParam(), .num_threads = 2});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    GTEST_SKIP() << error.what();
  }
  LinearWeight weight;
  {
    std::vector<bf16> host(static_cast<std::size_t>(kRows * kCols));
    for (std::int64_t i = 0; i < kRows * kCols; ++i)
      host[static_cast<std::size_t>(i)] = to_bf16(value_of(i / kCols, i % kCols));
    const HostMatrix part = {
        .format = WeightFormat::kBF16, .rows = kRows, .cols = kCols, .data = host.data()};
    weight = backend->load_linear({&part, 1});
    std::fill(host.begin(), host.end(), to_bf16(-1));  // the caller may reuse its memory
  }
  // One row of the step for each column that is looked at.
  const std::vector<std::int64_t> columns = {0, 1, 2047, 4094, 4095};
  const auto count = static_cast<std::int64_t>(columns.size());
  const DType act = backend->activation_dtype();
  const Buffer x_buffer = backend->allocate(static_cast<std::size_t>(count * kCols) * size_of(act));
  const Buffer out_buffer = backend->allocate(static_cast<std::size_t>(count * kRows) * 4);
  const Tensor x = x_buffer.tensor(act, {count, kCols});
  const Tensor out = out_buffer.tensor(DType::kF32, {count, kRows});
  std::vector<float> ones(static_cast<std::size_t>(count * kCols));
  std::vector<bf16> narrow(ones.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i * kCols + columns[static_cast<std::size_t>(i)]);
    ones[at] = 1;
    narrow[at] = to_bf16(1);
  }
  backend->upload(x, act == DType::kF32 ? static_cast<const void*>(ones.data()) : narrow.data());
  backend->linear({.x = x, .weight = &weight, .out = out});
  std::vector<float> results(static_cast<std::size_t>(count * kRows));
  backend->download(results.data(), out);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t row = 0; row < kRows; ++row)
      ASSERT_EQ(results[static_cast<std::size_t>(i * kRows + row)],
                value_of(row, columns[static_cast<std::size_t>(i)]))
          << "row " << row << ", column " << columns[static_cast<std::size_t>(i)];
}

INSTANTIATE_TEST_SUITE_P(Devices, LoadWeightsTest, ::testing::Values("cpu-reference", "cuda"),
                         [](const auto& param) {
                           return param.param == "cuda" ? "cuda" : "cpu_reference";
                         });

}  // namespace
}  // namespace coppice
