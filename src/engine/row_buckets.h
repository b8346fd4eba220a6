// Sizes of verify steps: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... So a step has at most half more rows
// than are wanted, and few graphs are captured.
#pragma once

#include <array>
#include <cstdint>

namespace coppice {

inline constexpr std::size_t kNumRowBuckets = 24;  // up to 6144 rows

inline constexpr std::array<std::int32_t, kNumRowBuckets> kRowBuckets = [] {
  std::array<std::int32_t, kNumRowBuckets> buckets{1};
  for (std::size_t i = 1; i < kNumRowBuckets; ++i)
    buckets[i] = i % 2 == 1 ? std::int32_t{2} << (i / 2) : std::int32_t{3} << (i / 2 - 1);
  return buckets;
}();
static_assert(kRowBuckets[1] == 2 && kRowBuckets[2] == 3 && kRowBuckets[3] == 4 &&
              kRowBuckets[4] == 6 && kRowBuckets[5] == 8);

// The smallest bucket that holds so many rows; the rows themselves beyond the last bucket.
constexpr std::int64_t bucket_at_least(std::int64_t rows) {
  for (const std::int32_t bucket : kRowBuckets)
    if (bucket >= rows) return bucket;
  return rows;
}

}  // namespace coppice
