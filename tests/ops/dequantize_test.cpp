// Known bytes of every weight format against values worked out by hand.
#include "backend/dequantize.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/half.h"

namespace coppice::cpu {
namespace {

std::vector<float> row_of(const HostMatrix& matrix, std::int64_t row = 0) {
  check_matrix(matrix);
  std::vector<float> out(static_cast<std::size_t>(matrix.cols));
  dequantize_row(matrix, row, out.data());
  return out;
}

std::vector<std::uint8_t> gguf_block(std::initializer_list<float> halves,
                                     const std::vector<std::uint8_t>& quants) {
  std::vector<std::uint8_t> block;
  for (float half : halves) {
    const std::uint16_t bits = to_f16(half).bits;
    block.push_back(static_cast<std::uint8_t>(bits & 0xff));
    block.push_back(static_cast<std::uint8_t>(bits >> 8));
  }
  block.insert(block.end(), quants.begin(), quants.end());
  return block;
}

TEST(DequantizeTest, WideFormats) {
  const float f32[] = {1.0f, 2.0f, -3.5f, 0.1f};
  const f16 half[] = {to_f16(1.5f), to_f16(-2.0f)};
  const bf16 brain[] = {to_bf16(0.5f), to_bf16(-8.0f)};
  EXPECT_EQ(row_of({WeightFormat::kF32, 2, 2, f32}, 1), (std::vector<float>{-3.5f, 0.1f}));
  EXPECT_EQ(row_of({WeightFormat::kF16, 1, 2, half}), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(row_of({WeightFormat::kBF16, 1, 2, brain}), (std::vector<float>{0.5f, -8.0f}));
}

TEST(DequantizeTest, Int4LowestNibbleFirstValueMinusEight) {
  // Row 1, second group: nibbles 0..7 in word 4 give -8..-1 times its scale.
  std::vector<std::uint32_t> words(16, 0x88888888u);
  words[12] = 0x76543210u;
  const bf16 scales[] = {to_bf16(1), to_bf16(1), to_bf16(1), to_bf16(0.25f)};
  const auto row = row_of({WeightFormat::kInt4Group32, 2, 64, words.data(), scales}, 1);
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(row[static_cast<std::size_t>(32 + i)], 0.25f * static_cast<float>(i - 8));
  EXPECT_EQ(row[0], 0.0f);
  EXPECT_EQ(row[40], 0.0f);
}

TEST(DequantizeTest, F8ScalesByBlockOf128) {
  std::vector<std::uint8_t> values(129 * 130, 0x38);  // 1.0
  const float scales[] = {2, 3, 5, 7};                // [2, 2]
  const HostMatrix matrix{WeightFormat::kF8Block128, 129, 130, values.data(), scales};
  EXPECT_EQ(row_of(matrix, 127)[127], 2.0f);
  EXPECT_EQ(row_of(matrix, 127)[128], 3.0f);
  EXPECT_EQ(row_of(matrix, 128)[0], 5.0f);
  EXPECT_EQ(row_of(matrix, 128)[129], 7.0f);
}

TEST(DequantizeTest, GgufBlocks) {
  std::vector<std::uint8_t> nibbles(16, 0x80);  // element i: 0, element i + 16: 8
  nibbles[3] = 0xf1;
  const auto q4_0 = row_of({WeightFormat::kQ4_0, 1, 32, gguf_block({0.5f}, nibbles).data()});
  EXPECT_EQ(q4_0[0], -4.0f);
  EXPECT_EQ(q4_0[3], -3.5f);
  EXPECT_EQ(q4_0[16], 0.0f);
  EXPECT_EQ(q4_0[19], 3.5f);
  const auto q4_1 = row_of({WeightFormat::kQ4_1, 1, 32, gguf_block({0.5f, -1}, nibbles).data()});
  EXPECT_EQ(q4_1[0], -1.0f);
  EXPECT_EQ(q4_1[3], -0.5f);
  EXPECT_EQ(q4_1[19], 6.5f);
  std::vector<std::uint8_t> bytes(32, 0);
  bytes[31] = 0x80;
  const auto q8_0 = row_of({WeightFormat::kQ8_0, 1, 32, gguf_block({2}, bytes).data()});
  EXPECT_EQ(q8_0[30], 0.0f);
  EXPECT_EQ(q8_0[31], -256.0f);
}

}  // namespace
}  // namespace coppice::cpu
