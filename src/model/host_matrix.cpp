#include "model/host_matrix.h"

#include <algorithm>
#include <cstring>

#include "backend/dequantize.h"

namespace coppice {
namespace {

constexpr std::int64_t kGroup = kQuantGroup;  // INT4 and GGUF groups
constexpr std::int64_t kF8Block = 128;        // FP8 scale blocks

std::size_t bytes_of(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

const std::byte* row_data(const HostMatrix& matrix, std::int64_t row) {
  return static_cast<const std::byte*>(matrix.data) +
         bytes_of(row) * row_bytes(matrix.format, matrix.cols);
}

bool is_shape_only(const HostMatrix& matrix) {
  return matrix.data == nullptr;
}

std::size_t element_bytes(WeightFormat format) {
  COPPICE_CHECK(is_plain(format), name_of(format));
  return format == WeightFormat::kF32 ? 4 : 2;
}

}  // namespace

const char* name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kBF16:
      return "BF16";
    case WeightFormat::kF8Block128:
      return "F8_E4M3 block 128x128";
    case WeightFormat::kInt4Group32:
      return "INT4 group 32";
    case WeightFormat::kQ4_0:
      return "Q4_0";
    case WeightFormat::kQ4_1:
      return "Q4_1";
    case WeightFormat::kQ8_0:
      return "Q8_0";
  }
  return "?";
}

bool is_plain(WeightFormat format) {
  return format == WeightFormat::kF32 || format == WeightFormat::kF16 ||
         format == WeightFormat::kBF16;
}

std::int64_t column_multiple(WeightFormat format) {
  if (is_plain(format)) return 1;
  return format == WeightFormat::kF8Block128 ? kF8Block : kGroup;
}

std::int64_t row_multiple(WeightFormat format) {
  return format == WeightFormat::kF8Block128 ? kF8Block : 1;
}

std::size_t row_bytes(WeightFormat format, std::int64_t cols) {
  switch (format) {
    case WeightFormat::kF32:
      return bytes_of(cols) * 4;
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return bytes_of(cols) * 2;
    case WeightFormat::kF8Block128:
      return bytes_of(cols);
    case WeightFormat::kInt4Group32:
      return bytes_of(cols) / 2;
    case WeightFormat::kQ4_0:
      return bytes_of(cols / kGroup) * 18;
    case WeightFormat::kQ4_1:
      return bytes_of(cols / kGroup) * 20;
    case WeightFormat::kQ8_0:
      return bytes_of(cols / kGroup) * 34;
  }
  return 0;
}

std::size_t num_bytes(const HostMatrix& matrix) {
  const std::size_t data = bytes_of(matrix.rows) * row_bytes(matrix.format, matrix.cols);
  if (matrix.format == WeightFormat::kInt4Group32)
    return data + bytes_of(matrix.rows * (matrix.cols / kGroup)) * sizeof(bf16);
  if (matrix.format == WeightFormat::kF8Block128)
    return data + bytes_of((matrix.rows + kF8Block - 1) / kF8Block *
                           ((matrix.cols + kF8Block - 1) / kF8Block)) *
                      sizeof(float);
  return data;
}

HostMatrix slice_rows(const HostMatrix& matrix, std::int64_t begin, std::int64_t count) {
  COPPICE_CHECK(begin >= 0 && count > 0 && begin + count <= matrix.rows, begin, " + ", count,
                " of ", matrix.rows);
  COPPICE_CHECK_EQ(begin % row_multiple(matrix.format), 0);
  HostMatrix slice = matrix;
  slice.rows = count;
  if (is_shape_only(matrix)) return slice;
  slice.data = row_data(matrix, begin);
  const auto* scales = static_cast<const std::byte*>(matrix.scales);
  if (matrix.format == WeightFormat::kInt4Group32)
    slice.scales = scales + bytes_of(begin * (matrix.cols / kGroup)) * sizeof(bf16);
  if (matrix.format == WeightFormat::kF8Block128)
    slice.scales = scales + bytes_of(begin / kF8Block * ((matrix.cols + kF8Block - 1) / kF8Block)) *
                                sizeof(float);
  return slice;
}

namespace {

// Copies `width` bytes from byte `begin` of each of `rows` rows of `stride` bytes.
const void* copy_columns(const void* source, std::int64_t rows, std::size_t stride,
                         std::size_t begin, std::size_t width, HostStorage& storage) {
  std::byte* out = storage.allocate(bytes_of(rows) * width);
  const auto* in = static_cast<const std::byte*>(source);
  for (std::int64_t row = 0; row < rows; ++row)
    std::memcpy(out + bytes_of(row) * width, in + bytes_of(row) * stride + begin, width);
  return out;
}

}  // namespace

HostMatrix slice_cols(const HostMatrix& matrix, std::int64_t begin, std::int64_t count,
                      HostStorage& storage) {
  COPPICE_CHECK(begin >= 0 && count > 0 && begin + count <= matrix.cols, begin, " + ", count,
                " of ", matrix.cols);
  if (count == matrix.cols) return matrix;
  const std::int64_t multiple = column_multiple(matrix.format);
  COPPICE_CHECK(begin % multiple == 0 && count % multiple == 0, begin, " + ", count);
  const WeightFormat format = matrix.format;
  HostMatrix slice = matrix;
  slice.cols = count;
  if (is_shape_only(matrix)) return slice;
  slice.data = copy_columns(matrix.data, matrix.rows, row_bytes(format, matrix.cols),
                            row_bytes(format, begin), row_bytes(format, count), storage);
  if (format == WeightFormat::kInt4Group32)
    slice.scales = copy_columns(
        matrix.scales, matrix.rows, bytes_of(matrix.cols / kGroup) * sizeof(bf16),
        bytes_of(begin / kGroup) * sizeof(bf16), bytes_of(count / kGroup) * sizeof(bf16), storage);
  if (format == WeightFormat::kF8Block128)
    slice.scales = copy_columns(matrix.scales, (matrix.rows + kF8Block - 1) / kF8Block,
                                bytes_of((matrix.cols + kF8Block - 1) / kF8Block) * sizeof(float),
                                bytes_of(begin / kF8Block) * sizeof(float),
                                bytes_of(count / kF8Block) * sizeof(float), storage);
  return slice;
}

HostMatrix gather_rows(const HostMatrix& matrix, std::span<const std::int64_t> order,
                       HostStorage& storage) {
  const std::size_t width = bytes_of(matrix.cols) * element_bytes(matrix.format);
  if (is_shape_only(matrix))
    return {.format = matrix.format, .rows = std::ssize(order), .cols = matrix.cols};
  std::byte* out = storage.allocate(order.size() * width);
  for (std::size_t i = 0; i < order.size(); ++i) {
    COPPICE_CHECK_LT(order[i], matrix.rows);
    std::memcpy(out + i * width, row_data(matrix, order[i]), width);
  }
  return {.format = matrix.format,
          .rows = static_cast<std::int64_t>(order.size()),
          .cols = matrix.cols,
          .data = out};
}

HostMatrix transpose(const HostMatrix& matrix, HostStorage& storage) {
  const std::size_t size = element_bytes(matrix.format);
  if (is_shape_only(matrix))
    return {.format = matrix.format, .rows = matrix.cols, .cols = matrix.rows};
  std::byte* out = storage.allocate(bytes_of(matrix.rows * matrix.cols) * size);
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::byte* in = row_data(matrix, row);
    for (std::int64_t col = 0; col < matrix.cols; ++col)
      std::memcpy(out + bytes_of(col * matrix.rows + row) * size, in + bytes_of(col) * size, size);
  }
  return {.format = matrix.format, .rows = matrix.cols, .cols = matrix.rows, .data = out};
}

HostMatrix to_plain(const HostMatrix& matrix, HostStorage& storage) {
  if (is_plain(matrix.format)) return matrix;
  if (is_shape_only(matrix))
    return {.format = WeightFormat::kBF16, .rows = matrix.rows, .cols = matrix.cols};
  const std::size_t width = bytes_of(matrix.cols) * sizeof(bf16);
  std::byte* out = storage.allocate(bytes_of(matrix.rows) * width);
  std::vector<float> values(bytes_of(matrix.cols));
  std::vector<bf16> rounded(values.size());
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    dequantize_row(matrix, row, values.data());
    std::ranges::transform(values, rounded.begin(), to_bf16);
    std::memcpy(out + bytes_of(row) * width, rounded.data(), width);
  }
  return {.format = WeightFormat::kBF16, .rows = matrix.rows, .cols = matrix.cols, .data = out};
}

}  // namespace coppice
