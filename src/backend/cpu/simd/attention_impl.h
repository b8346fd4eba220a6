// One step of attention (at most 64 keys) for a tile of heads that share the keys. A head's
// operations do not depend on the other heads of its tile, nor a key's score on the other keys.
#pragma once

#include "backend/cpu/simd/kernels.h"

namespace coppice::cpu::simd {
namespace {

inline void prefetch_row(const float* row, std::int64_t size) {
  for (std::int64_t d = 0; d < size; d += 16) __builtin_prefetch(row + d);
}

// scores[h][first .. first + K), K is 1 or 4.
template <int H, int K>
inline void score_keys(const AttentionTile& tile, const float* const* keys, std::int64_t first,
                       float (*scores)[kMaxStepKeys]) {
  F sums[H][K];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) sums[h][k] = f_zero();
  for (std::int64_t d = 0; d < tile.key_dim; d += 16) {
    F query[H];
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) query[h] = f_load(tile.query + h * tile.key_dim + d);
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) {
      const F key = f_load(keys[first + k] + d);
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) sums[h][k] = f_fma(query[h], key, sums[h][k]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
    if constexpr (K == 4) {
      f_sum4(sums[h][0], sums[h][1], sums[h][2], sums[h][3], tile.scale, scores[h] + first);
    } else {
      scores[h][first] = f_sum(sums[h][0]) * tile.scale;
    }
  }
}

// scores -> weights in place; moves the head's running maximum and sum, returns what the values so
// far are to be multiplied with.
inline float soften(float* scores, std::int64_t count, float& running_max, float& running_sum) {
  for (std::int64_t i = count; i < kMaxStepKeys; ++i) scores[i] = -__builtin_inff();
  F largest = f_load(scores);
  for (int i = 16; i < kMaxStepKeys; i += 16) largest = f_max(largest, f_load(scores + i));
  const float step_max = f_largest(largest);
  const float next_max = running_max > step_max ? running_max : step_max;
  float lanes[16];
  f_store(lanes, f_exp(f_set(running_max - next_max)));
  F sum = f_zero();
  for (int i = 0; i < kMaxStepKeys; i += 16) {
    const F weights = f_exp(f_sub(f_load(scores + i), f_set(next_max)));
    f_store(scores + i, weights);
    sum = f_add(sum, weights);
  }
  running_max = next_max;
  running_sum = running_sum * lanes[0] + f_sum(sum);
  return lanes[0];
}

// out = out * keep + sum over keys in order of weight * value, for C chunks of 16 columns.
template <int H, int C>
inline void add_values(const AttentionTile& tile, const float* const* values, std::int64_t count,
                       std::int64_t column, const float (*weights)[kMaxStepKeys],
                       const float* keep) {
  F acc[H][C];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
      acc[h][c] = f_mul(f_load(tile.out + h * tile.value_dim + column + 16 * c), f_set(keep[h]));
  for (std::int64_t i = 0; i < count; ++i) {
    F value[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) value[c] = f_load(values[i] + column + 16 * c);
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h)
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[h][c] = f_fma(f_set(weights[h][i]), value[c], acc[h][c]);
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) f_store(tile.out + h * tile.value_dim + column + 16 * c, acc[h][c]);
}

template <int H>
inline void step_with(const AttentionTile& tile, const AttentionKeys& now,
                      const AttentionKeys& next) {
  const std::int64_t count = now.count;
  float scores[H][kMaxStepKeys];
  float keep[H];
  std::int64_t i = 0;
  for (; i + kKeyTile <= count; i += kKeyTile) {
    for (int k = 0; k < kKeyTile; ++k) prefetch_row(now.values[i + k], tile.value_dim);
    score_keys<H, kKeyTile>(tile, now.keys, i, scores);
  }
  for (; i < count; ++i) score_keys<H, 1>(tile, now.keys, i, scores);
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) keep[h] = soften(scores[h], count, tile.max[h], tile.sum[h]);
  for (i = 0; i < next.count; ++i) prefetch_row(next.keys[i], tile.key_dim);
  std::int64_t column = 0;
  for (; column + 64 <= tile.value_dim; column += 64)
    add_values<H, 4>(tile, now.values, count, column, scores, keep);
  for (; column < tile.value_dim; column += 16)
    add_values<H, 1>(tile, now.values, count, column, scores, keep);
}

void attention_step(const AttentionTile& tile, const AttentionKeys& now,
                    const AttentionKeys& next) {
  switch (tile.heads) {
    case 1:
      return step_with<1>(tile, now, next);
    case 2:
      return step_with<2>(tile, now, next);
    case 3:
      return step_with<3>(tile, now, next);
    default:
      return step_with<4>(tile, now, next);
  }
}

void attention_finish(const AttentionTile& tile) {
  for (std::int64_t h = 0; h < tile.heads; ++h) {
    const F inverse = f_set(1.0f / tile.sum[h]);
    float* const out = tile.out + h * tile.value_dim;
    for (std::int64_t d = 0; d < tile.value_dim; d += 16)
      f_store(out + d, f_mul(f_load(out + d), inverse));
  }
}

}  // namespace
}  // namespace coppice::cpu::simd
