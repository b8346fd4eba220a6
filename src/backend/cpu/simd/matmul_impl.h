// Projections over packed weights, written once over the 16-lane vectors of vector_*.h. A tile of
// rows shares each loaded weight; every row of a tile runs the same operations as it does alone.
#pragma once

#include "backend/cpu/simd/kernels.h"

namespace coppice::cpu::simd {
namespace {

constexpr std::int64_t kPrefetchBytes = 4096;

inline I word_at(const std::uint8_t* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return i_set(word);
}

// The hardware prefetcher stops at page ends and at the short runs of one thread's share.
template <std::int64_t kBytes>
inline void prefetch_ahead(const std::uint8_t* p) {
#pragma GCC unroll 32
  for (std::int64_t line = 0; line < kBytes; line += 64)
    __builtin_prefetch(p + kPrefetchBytes + line);
}

// The parts of a prepared quantised row.
struct QuantRow {
  const std::uint8_t* values;
  const float* scales;
  const std::uint8_t* starts;  // int32, or f32 for kQ4_1
};

inline QuantRow quant_row(const std::uint8_t* row, std::int64_t value_bytes, std::int64_t groups) {
  const auto* scales = reinterpret_cast<const float*>(row + value_bytes);
  return {row, scales, reinterpret_cast<const std::uint8_t*>(scales + groups)};
}

// sum += words [kFrom, kTo) of one group of weights (as integers) * activations of M rows.
struct Int4Group {
  static constexpr GroupOffsets kOffsets = kNibbleGroups;
  static constexpr int kWords = 4;
  static constexpr std::int64_t kValueBytes = 2;
  static constexpr bool kBf16Scales = true;
  template <int M, int kFrom, int kTo>
  [[gnu::always_inline]] static inline void dot(const std::uint8_t* weights,
                                                const std::uint8_t* const (&x)[M], I (&sum)[M]) {
    const I mask = i_set(0x000f000f);
#pragma GCC unroll 8
    for (int q = kFrom; q < kTo; ++q) {
      const I word = i_load(weights + 64 * q);
      const I pairs[4] = {i_and(word, mask), i_and(i_shift_right<4>(word), mask),
                          i_and(i_shift_right<8>(word), mask),
                          i_and(i_shift_right<12>(word), mask)};
#pragma GCC unroll 8
      for (int k = 0; k < 4; ++k)
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
          sum[m] = dot_s16(sum[m], pairs[k], word_at(x[m] + 16 * q + 4 * k));
    }
  }
};

struct Q4Group {
  static constexpr GroupOffsets kOffsets = kNibbleGroups;
  static constexpr int kWords = 4;
  static constexpr std::int64_t kValueBytes = 1;
  static constexpr bool kBf16Scales = false;
  template <int M, int kFrom, int kTo>
  [[gnu::always_inline]] static inline void dot(const std::uint8_t* weights,
                                                const std::uint8_t* const (&x)[M], I (&sum)[M]) {
    const I mask = i_set(0x0f0f0f0f);
#pragma GCC unroll 8
    for (int q = kFrom; q < kTo; ++q) {
      const I word = i_load(weights + 64 * q);
      const I low = i_and(word, mask), high = i_and(i_shift_right<4>(word), mask);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sum[m] = dot_u4(sum[m], low, word_at(x[m] + 8 * q));
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sum[m] = dot_u4(sum[m], high, word_at(x[m] + 8 * q + 4));
    }
  }
};

struct Q4MinimumGroup : Q4Group {
  static constexpr GroupOffsets kOffsets = kNibbleMinimumGroups;
};

struct Q8Group {
  static constexpr GroupOffsets kOffsets = kByteGroups;
  static constexpr int kWords = 8;
  static constexpr std::int64_t kValueBytes = 1;
  static constexpr bool kBf16Scales = false;
  template <int M, int kFrom, int kTo>
  [[gnu::always_inline]] static inline void dot(const std::uint8_t* weights,
                                                const std::uint8_t* const (&x)[M], I (&sum)[M]) {
#pragma GCC unroll 8
    for (int q = kFrom; q < kTo; ++q) {
      const I word = i_load(weights + 64 * q);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sum[m] = dot_q8(sum[m], word, word_at(x[m] + 4 * q));
    }
  }
};

template <typename Group>
struct QuantTile {
  static constexpr int kMaxRows = kQuantTile;

  template <int M>
  [[gnu::always_inline]] static inline void add_group(const std::uint8_t* block, std::int64_t g,
                                                      const QuantRow (&rows)[M], F (&acc)[M]) {
    constexpr GroupOffsets kAt = Group::kOffsets;
    const std::uint8_t* values[M];
    I sum[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      values[m] = rows[m].values + g * kGroup * Group::kValueBytes;
      sum[m] = kAt.has_minima ? i_set(0) : word_at(rows[m].starts + 4 * g);
    }
    // Integer sums are exact in any order: few rows take two chains, which hide latency.
    constexpr int kHalf = Group::kWords / 2;
    if constexpr (M <= 2) {
      I other[M];
      for (int m = 0; m < M; ++m) other[m] = i_set(0);
      Group::template dot<M, 0, kHalf>(block + kAt.words(g), values, sum);
      Group::template dot<M, kHalf, Group::kWords>(block + kAt.words(g), values, other);
      for (int m = 0; m < M; ++m) sum[m] = i_add(sum[m], other[m]);
    } else {
      Group::template dot<M, 0, Group::kWords>(block + kAt.words(g), values, sum);
    }
    const std::uint8_t* const scales = block + kAt.scales(g);
    const F scale = Group::kBf16Scales ? f_from_bf16(scales) : f_from_f16(scales);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      acc[m] = f_fma(f_from_i(sum[m]), f_mul(scale, f_set(rows[m].scales[g])), acc[m]);
    if constexpr (kAt.has_minima) {
      const F minimum = f_from_f16(block + kAt.minima(g));
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
        acc[m] = f_fma(minimum, f_cast(word_at(rows[m].starts + 4 * g)), acc[m]);
    }
  }

  template <int M>
  [[gnu::always_inline]] static inline void run(const std::uint8_t* block, std::int64_t cols,
                                                const std::uint8_t* const (&x)[M], F (&acc)[M]) {
    const std::int64_t groups = cols / kGroup;
    QuantRow rows[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      rows[m] = quant_row(x[m], cols * Group::kValueBytes, groups);
      acc[m] = f_zero();
    }
    for (std::int64_t g = 0; g + 2 <= groups; g += 2) {
      prefetch_ahead<Group::kOffsets.pair_bytes()>(block + Group::kOffsets.words(g));
      add_group<M>(block, g, rows, acc);
      add_group<M>(block, g + 1, rows, acc);
    }
    if (groups % 2 != 0) add_group<M>(block, groups - 1, rows, acc);
  }
};

// Columns loaded two at a time, so that bf16 pairs fit in.
struct F32Columns {
  static constexpr std::int64_t kPairBytes = 128;
  [[gnu::always_inline]] static inline void load(const std::uint8_t* p, F& even, F& odd) {
    even = f_load(reinterpret_cast<const float*>(p));
    odd = f_load(reinterpret_cast<const float*>(p) + 16);
  }
};
struct F16Columns {
  static constexpr std::int64_t kPairBytes = 64;
  [[gnu::always_inline]] static inline void load(const std::uint8_t* p, F& even, F& odd) {
    even = f_from_f16(p);
    odd = f_from_f16(p + 32);
  }
};
struct BF16Columns {
  static constexpr std::int64_t kPairBytes = 64;
  [[gnu::always_inline]] static inline void load(const std::uint8_t* p, F& even, F& odd) {
    const I pairs = i_load(p);
    even = f_cast(i_shift_left<16>(pairs));
    odd = f_cast(i_and(pairs, i_set(static_cast<std::int32_t>(0xffff0000u))));
  }
};

// Column c adds to sum c % 4: four chains hide the latency of the multiply-add for a lone row.
template <typename Columns>
struct FloatTile {
  static constexpr int kMaxRows = kFloatTile;

  template <int M>
  [[gnu::always_inline]] static inline void run(const std::uint8_t* block, std::int64_t cols,
                                                const std::uint8_t* const (&rows)[M], F (&acc)[M]) {
    const float* x[M];
    F sum[M][4];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      x[m] = reinterpret_cast<const float*>(rows[m]);
#pragma GCC unroll 8
      for (int i = 0; i < 4; ++i) sum[m][i] = f_zero();
    }
    std::int64_t c = 0;
    for (; c + 4 <= cols; c += 4) {
      F w[4];
      Columns::load(block + c / 2 * Columns::kPairBytes, w[0], w[1]);
      Columns::load(block + (c / 2 + 1) * Columns::kPairBytes, w[2], w[3]);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int i = 0; i < 4; ++i) sum[m][i] = f_fma(w[i], f_set(x[m][c + i]), sum[m][i]);
    }
    if (c + 2 <= cols) {
      F w[2];
      Columns::load(block + c / 2 * Columns::kPairBytes, w[0], w[1]);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int i = 0; i < 2; ++i) sum[m][i] = f_fma(w[i], f_set(x[m][c + i]), sum[m][i]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      acc[m] = f_add(f_add(sum[m][0], sum[m][1]), f_add(sum[m][2], sum[m][3]));
  }
};

template <typename Tile, int M>
inline void run_tile(const MatmulArgs& args, std::int64_t block, std::int64_t first) {
  const PackedMatrix& w = args.weight;
  const std::uint8_t* x[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const std::int64_t i = first + m;
    x[m] = args.x + (args.x_rows != nullptr ? args.x_rows[i] : i) * args.x_stride;
  }
  F acc[M];
  Tile::template run<M>(w.data + block * w.block_bytes, w.cols, x, acc);
  const std::int64_t row = block * kBlockRows;
  const std::int64_t begin = row < args.row_begin ? args.row_begin : row;
  const std::int64_t end = row + kBlockRows > args.row_end ? args.row_end : row + kBlockRows;
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const std::int64_t i = first + m;
    float* const out =
        args.out + (args.out_rows != nullptr ? args.out_rows[i] : i) * args.out_stride;
    if (end - begin == kBlockRows) {
      f_store(out + (row - args.out_first), acc[m]);
    } else {
      float lanes[kBlockRows];
      f_store(lanes, acc[m]);
      for (std::int64_t r = begin; r < end; ++r) out[r - args.out_first] = lanes[r - row];
    }
  }
}

template <typename Tile>
inline void matmul_with(const MatmulArgs& args) {
  for (std::int64_t block = args.row_begin / kBlockRows; block * kBlockRows < args.row_end;
       ++block) {
    std::int64_t i = 0;
    if constexpr (Tile::kMaxRows >= 8)
      for (; i + 8 <= args.count; i += 8) run_tile<Tile, 8>(args, block, i);
    if constexpr (Tile::kMaxRows >= 4)
      for (; i + 4 <= args.count; i += 4) run_tile<Tile, 4>(args, block, i);
    if constexpr (Tile::kMaxRows >= 2)
      for (; i + 2 <= args.count; i += 2) run_tile<Tile, 2>(args, block, i);
    for (; i < args.count; ++i) run_tile<Tile, 1>(args, block, i);
  }
}

void matmul(const MatmulArgs& args) {
  switch (args.weight.layout) {
    case Layout::kF32:
      return matmul_with<FloatTile<F32Columns>>(args);
    case Layout::kF16:
      return matmul_with<FloatTile<F16Columns>>(args);
    case Layout::kBF16:
      return matmul_with<FloatTile<BF16Columns>>(args);
    case Layout::kInt4:
      return matmul_with<QuantTile<Int4Group>>(args);
    case Layout::kQ4_0:
      return matmul_with<QuantTile<Q4Group>>(args);
    case Layout::kQ4_1:
      return matmul_with<QuantTile<Q4MinimumGroup>>(args);
    case Layout::kQ8_0:
      return matmul_with<QuantTile<Q8Group>>(args);
  }
}

// One group of 32: int16 or int8 with one scale. NaN or infinity in x makes the scale NaN, so that
// the row's results are too.
inline void quantize_group(const float* x, float largest_code, bool wide, std::uint8_t* values,
                           float& scale, std::int32_t& code_sum) {
  const F a = f_load(x), b = f_load(x + 16);
  const float largest = f_largest(f_max(f_abs(a), f_abs(b)));
  const float poison = f_sum(f_fma(a, f_zero(), f_mul(b, f_zero())));
  const F inverse = f_set(largest > 1e-30f ? largest_code / largest : 0.0f);
  const I codes_a = i_from_f(f_mul(a, inverse)), codes_b = i_from_f(f_mul(b, inverse));
  if (wide) {
    store_s16(values, codes_a);
    store_s16(values + 32, codes_b);
  } else {
    store_s8(values, codes_a);
    store_s8(values + 16, codes_b);
  }
  scale = largest / largest_code + poison;
  code_sum = poison == 0.0f ? i_sum(i_add(codes_a, codes_b)) : 0;
}

void quantize(Layout layout, const float* x, std::int64_t group_begin, std::int64_t group_count,
              std::int64_t cols, std::uint8_t* row) {
  const bool wide = layout == Layout::kInt4;
  const std::int64_t value_bytes = wide ? 2 : 1, groups = cols / kGroup;
  const std::int32_t zero = layout == Layout::kQ8_0 ? kQ8Zero : 8;
  auto* const scales = reinterpret_cast<float*>(row + cols * value_bytes);
  auto* const starts = reinterpret_cast<std::uint8_t*>(scales + groups);
  for (std::int64_t g = group_begin; g < group_begin + group_count; ++g, x += kGroup) {
    std::int32_t code_sum = 0;
    quantize_group(x, wide ? 32767.0f : 127.0f, wide, row + g * kGroup * value_bytes, scales[g],
                   code_sum);
    const std::int32_t start = -zero * code_sum;
    const float sum = scales[g] * static_cast<float>(code_sum);
    if (layout == Layout::kQ4_1)
      __builtin_memcpy(starts + 4 * g, &sum, sizeof sum);
    else
      __builtin_memcpy(starts + 4 * g, &start, sizeof start);
  }
}

}  // namespace
}  // namespace coppice::cpu::simd
