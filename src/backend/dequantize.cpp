#include "backend/dequantize.h"

#include <cstring>

#include "base/check.h"
#include "base/half.h"

namespace coppice {
namespace {

// Bytes of a GGUF block of 32: f16 scale, (Q4_1: f16 minimum,) quants.
constexpr std::int64_t kQ4_0Bytes = 18, kQ4_1Bytes = 20, kQ8_0Bytes = 34;

f16 load_f16(const std::uint8_t* bytes) {
  f16 value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

void int4_row(const HostMatrix& m, std::int64_t row, float* out) {
  const auto* words = static_cast<const std::uint32_t*>(m.data) + row * (m.cols / 8);
  const auto* scales = static_cast<const bf16*>(m.scales) + row * (m.cols / kQuantGroup);
  for (std::int64_t j = 0; j < m.cols; ++j) {
    const auto nibble = static_cast<int>((words[j / 8] >> (4 * (j % 8))) & 0xfu);
    out[j] = static_cast<float>(nibble - 8) * to_float(scales[j / kQuantGroup]);
  }
}

void f8_row(const HostMatrix& m, std::int64_t row, float* out) {
  constexpr std::int64_t kBlock = 128;
  const auto* values = static_cast<const std::uint8_t*>(m.data) + row * m.cols;
  const auto* scales =
      static_cast<const float*>(m.scales) + row / kBlock * ((m.cols + kBlock - 1) / kBlock);
  for (std::int64_t j = 0; j < m.cols; ++j)
    out[j] = f8e4m3_to_float(values[j]) * scales[j / kBlock];
}

// Byte i of a block holds elements i (low nibble) and i + 16 (high nibble).
void q4_row(const std::uint8_t* block, bool has_minimum, std::int64_t cols, float* out) {
  for (std::int64_t j = 0; j < cols; j += kQuantGroup) {
    const float scale = to_float(load_f16(block));
    const float minimum = has_minimum ? to_float(load_f16(block + 2)) : 0.0f;
    const int zero = has_minimum ? 0 : 8;
    const std::uint8_t* const quants = block + (has_minimum ? 4 : 2);
    for (std::int64_t i = 0; i < kQuantGroup / 2; ++i) {
      out[j + i] = static_cast<float>((quants[i] & 0xf) - zero) * scale + minimum;
      out[j + i + kQuantGroup / 2] = static_cast<float>((quants[i] >> 4) - zero) * scale + minimum;
    }
    block += has_minimum ? kQ4_1Bytes : kQ4_0Bytes;
  }
}

void q8_row(const std::uint8_t* block, std::int64_t cols, float* out) {
  for (std::int64_t j = 0; j < cols; j += kQuantGroup, block += kQ8_0Bytes) {
    const float scale = to_float(load_f16(block));
    for (std::int64_t i = 0; i < kQuantGroup; ++i)
      out[j + i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * scale;
  }
}

template <typename T>
void widen_row(const HostMatrix& m, std::int64_t row, float* out) {
  const auto* values = static_cast<const T*>(m.data) + row * m.cols;
  for (std::int64_t j = 0; j < m.cols; ++j) out[j] = to_float(values[j]);
}

}  // namespace

void check_matrix(const HostMatrix& matrix) {
  COPPICE_CHECK(matrix.data != nullptr && matrix.rows >= 0 && matrix.cols >= 0, matrix.rows, " x ",
                matrix.cols);
  switch (matrix.format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return;
    case WeightFormat::kF8Block128:
      COPPICE_CHECK(matrix.scales != nullptr);
      return;
    case WeightFormat::kInt4Group32:
      COPPICE_CHECK(matrix.scales != nullptr);
      [[fallthrough]];
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ8_0:
      COPPICE_CHECK_EQ(matrix.cols % kQuantGroup, 0);
      return;
  }
}

void dequantize_row(const HostMatrix& matrix, std::int64_t row, float* out) {
  const auto* bytes = static_cast<const std::uint8_t*>(matrix.data);
  const std::int64_t first_block = row * (matrix.cols / kQuantGroup);
  switch (matrix.format) {
    case WeightFormat::kF32:
      std::memcpy(out, static_cast<const float*>(matrix.data) + row * matrix.cols,
                  static_cast<std::size_t>(matrix.cols) * sizeof(float));
      return;
    case WeightFormat::kF16:
      return widen_row<f16>(matrix, row, out);
    case WeightFormat::kBF16:
      return widen_row<bf16>(matrix, row, out);
    case WeightFormat::kF8Block128:
      return f8_row(matrix, row, out);
    case WeightFormat::kInt4Group32:
      return int4_row(matrix, row, out);
    case WeightFormat::kQ4_0:
      return q4_row(bytes + first_block * kQ4_0Bytes, false, matrix.cols, out);
    case WeightFormat::kQ4_1:
      return q4_row(bytes + first_block * kQ4_1Bytes, true, matrix.cols, out);
    case WeightFormat::kQ8_0:
      return q8_row(bytes + first_block * kQ8_0Bytes, matrix.cols, out);
  }
}

}  // namespace coppice
