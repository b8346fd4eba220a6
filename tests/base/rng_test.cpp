#include "base/rng.h"

#include <gtest/gtest.h>

namespace coppice {
namespace {

// Known answers published with Random123 (kat_vectors, philox4x32-10).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0),
            (PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, ~std::uint64_t{0}),
            (PhiloxCounter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
}

TEST(PhiloxTest, UniformStaysInsideTheOpenInterval) {
  EXPECT_GT(uniform_open(0), 0.0f);
  EXPECT_LT(uniform_open(0xffffffffu), 1.0f);
}

}  // namespace
}  // namespace coppice
