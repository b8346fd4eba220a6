#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace coppice {
namespace {

TEST(HalfTest, Bf16RoundTripsEveryPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const bf16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(to_float(value)))));
    } else {
      EXPECT_EQ(to_bf16(to_float(value)).bits, bits);
    }
  }
}

TEST(HalfTest, F16RoundTripsEveryPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const f16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(to_float(value)))));
    } else {
      EXPECT_EQ(to_f16(to_float(value)).bits, bits) << bits;
    }
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  EXPECT_EQ(to_float(to_bf16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(to_float(to_bf16(1.0f + 0x1.8p-7f)), 1.0f + 0x1p-6f);
  EXPECT_EQ(to_float(to_f16(1.0f + 0x1p-11f)), 1.0f);
  EXPECT_EQ(to_float(to_f16(65520.0f)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(to_float(to_f16(0x1p-25f)), 0.0f);
}

TEST(HalfTest, F8E4M3KnownValues) {
  EXPECT_EQ(f8e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(f8e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(f8e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(f8e4m3_to_float(0xb8), -1.0f);
  EXPECT_TRUE(std::isnan(f8e4m3_to_float(0x7f)));
}

}  // namespace
}  // namespace coppice
