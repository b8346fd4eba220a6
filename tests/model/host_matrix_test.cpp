#include "model/host_matrix.h"

#include <gtest/gtest.h>

#include <cstring>

#include "backend/dequantize.h"
#include "base/rng.h"

namespace coppice {
namespace {

constexpr WeightFormat kAll[] = {
    WeightFormat::kF32,         WeightFormat::kF16,  WeightFormat::kBF16, WeightFormat::kF8Block128,
    WeightFormat::kInt4Group32, WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ8_0};

// Random bytes with scales that keep every value finite.
HostMatrix random_matrix(WeightFormat format, std::int64_t rows, std::int64_t cols,
                         HostStorage& storage) {
  HostMatrix matrix{.format = format, .rows = rows, .cols = cols};
  const std::size_t size = static_cast<std::size_t>(rows) * row_bytes(format, cols);
  std::byte* data = storage.allocate(size);
  for (std::size_t i = 0; i < size; ++i)
    data[i] = static_cast<std::byte>(philox4x32({static_cast<std::uint32_t>(i), 0, 0, 0}, 1)[0]);
  matrix.data = data;
  const auto small = [&](std::size_t i) {
    return 0.5f +
           static_cast<float>(philox4x32({static_cast<std::uint32_t>(i), 1, 0, 0}, 1)[0] % 7);
  };
  if (is_plain(format)) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows * cols); ++i) {
      const float value = small(i);
      const bf16 b = to_bf16(value);
      const f16 h = to_f16(value);
      if (format == WeightFormat::kF32) std::memcpy(data + 4 * i, &value, 4);
      if (format == WeightFormat::kF16) std::memcpy(data + 2 * i, &h, 2);
      if (format == WeightFormat::kBF16) std::memcpy(data + 2 * i, &b, 2);
    }
  } else if (format == WeightFormat::kF8Block128) {
    for (std::size_t i = 0; i < size; ++i) data[i] &= std::byte{0x77};  // no NaN
    auto* scales = reinterpret_cast<float*>(storage.allocate(num_bytes(matrix) - size));
    for (std::size_t i = 0; i < (num_bytes(matrix) - size) / 4; ++i) scales[i] = small(i);
    matrix.scales = scales;
  } else if (format == WeightFormat::kInt4Group32) {
    auto* scales = reinterpret_cast<bf16*>(storage.allocate(num_bytes(matrix) - size));
    for (std::size_t i = 0; i < (num_bytes(matrix) - size) / 2; ++i) scales[i] = to_bf16(small(i));
    matrix.scales = scales;
  } else {
    const std::size_t block = row_bytes(format, 32);
    for (std::size_t i = 0; i < size; i += block) {
      const f16 scale = to_f16(small(i));
      std::memcpy(data + i, &scale, 2);
      if (format == WeightFormat::kQ4_1) std::memcpy(data + i + 2, &scale, 2);
    }
  }
  return matrix;
}

std::vector<std::vector<float>> values_of(const HostMatrix& matrix) {
  check_matrix(matrix);
  std::vector<std::vector<float>> rows;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    rows.emplace_back(static_cast<std::size_t>(matrix.cols));
    dequantize_row(matrix, row, rows.back().data());
  }
  return rows;
}

// Slices at every legal place hold exactly the values of that part of the whole.
TEST(HostMatrix, SlicesOfEveryFormat) {
  for (const WeightFormat format : kAll) {
    SCOPED_TRACE(name_of(format));
    HostStorage storage;
    const HostMatrix matrix = random_matrix(format, 256, 384, storage);
    const auto whole = values_of(matrix);
    const std::int64_t row_step =
        row_multiple(format) * (format == WeightFormat::kF8Block128 ? 1 : 64);
    for (std::int64_t begin = 0; begin < 256; begin += row_step) {
      const auto part = values_of(slice_rows(matrix, begin, row_step));
      for (std::size_t i = 0; i < part.size(); ++i)
        EXPECT_EQ(part[i], whole[static_cast<std::size_t>(begin) + i]);
    }
    const std::int64_t col_step = std::max<std::int64_t>(column_multiple(format), 32);
    for (std::int64_t begin = 0; begin < 384; begin += col_step) {
      const auto part = values_of(slice_cols(matrix, begin, col_step, storage));
      for (std::size_t i = 0; i < part.size(); ++i)
        EXPECT_EQ(part[i], std::vector<float>(whole[i].begin() + begin,
                                              whole[i].begin() + begin + col_step));
    }
  }
}

TEST(HostMatrixDeathTest, ColumnsAreCutAtWholeGroups) {
  HostStorage storage;
  const HostMatrix int4 = random_matrix(WeightFormat::kInt4Group32, 4, 128, storage);
  EXPECT_DEATH(slice_cols(int4, 16, 64, storage), "16 \\+ 64");
  const HostMatrix f8 = random_matrix(WeightFormat::kF8Block128, 256, 256, storage);
  EXPECT_DEATH(slice_rows(f8, 64, 128), "");
  EXPECT_DEATH(slice_rows(f8, 128, 129), "128 \\+ 129 of 256");
}

TEST(HostMatrix, RegroupedRowsAndTranspose) {
  HostStorage storage;
  const HostMatrix matrix = random_matrix(WeightFormat::kBF16, 6, 5, storage);
  const auto whole = values_of(matrix);
  const std::int64_t order[] = {4, 0, 4};
  const auto gathered = values_of(gather_rows(matrix, order, storage));
  ASSERT_EQ(gathered.size(), 3u);
  EXPECT_EQ(gathered[0], whole[4]);
  EXPECT_EQ(gathered[1], whole[0]);
  EXPECT_EQ(gathered[2], whole[4]);
  const auto turned = values_of(transpose(matrix, storage));
  for (std::size_t row = 0; row < 6; ++row)
    for (std::size_t col = 0; col < 5; ++col) EXPECT_EQ(turned[col][row], whole[row][col]);
}

TEST(HostMatrix, ToPlainRoundsOnce) {
  HostStorage storage;
  for (const WeightFormat format : kAll) {
    const HostMatrix matrix = random_matrix(format, 130, 128, storage);
    const HostMatrix plain = to_plain(matrix, storage);
    EXPECT_TRUE(is_plain(plain.format));
    const auto exact = values_of(matrix), rounded = values_of(plain);
    for (std::size_t row = 0; row < exact.size(); ++row)
      for (std::size_t col = 0; col < exact[row].size(); ++col)
        EXPECT_EQ(rounded[row][col],
                  is_plain(format) ? exact[row][col] : to_float(to_bf16(exact[row][col])));
  }
}

}  // namespace
}  // namespace coppice
