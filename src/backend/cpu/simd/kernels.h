// The fast CPU kernels as one table per instruction set. Plain pointers only: these files are
// compiled for newer machines than the rest, and an inline function of the standard library
// instantiated here could be the copy that the linker keeps for everybody.
//
// The helpers below are always inlined for the same reason.
//
// Every kernel computes a row of the result by one fixed sequence of operations, whatever rows are
// computed beside it.
#pragma once

#include <cstdint>

namespace coppice::cpu::simd {

// Weight rows are interleaved by 16: lane r of a vector belongs to row r of the block.
inline constexpr std::int64_t kBlockRows = 16;
inline constexpr std::int64_t kGroup = 32;  // columns of a quantisation group

// Bytes of one block of 16 rows, in the order they are read: one stream of whole cache lines.
// "word" = 16 lanes of 32 bits. Quantised layouts go by pairs of groups: the words of both, then
// 2 x 16 scales (then 2 x 16 minima); an odd last group is followed by a zero one.
enum class Layout : std::uint8_t {
  kF32,   // per column: word of f32
  kF16,   // per column: 16 f16
  kBF16,  // per 2 columns: word of bf16 pairs, even column low
  kInt4,  // per group 4 words of 8 nibbles: nibble k = column 8q + 2k, k + 4 = column 8q + 2k + 1;
          // bf16 scales; value = nibble - 8
  kQ4_0,  // per group 4 words: byte i = columns 8q + i (low), 8q + 4 + i (high); f16 scales;
          // value = nibble - 8
  kQ4_1,  // as kQ4_0 with f16 minima: value = nibble * scale + minimum
  kQ8_0,  // per group 8 words of 4 bytes: byte i = column 4q + i, stored + 128; f16 scales
};

// A view of packed weights.
struct PackedMatrix {
  Layout layout = Layout::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // padded to even for float layouts
  const std::uint8_t* data = nullptr;
  std::int64_t block_bytes = 0;
};

// Activations as a layout wants them, one row after another:
//   kF32, kF16, kBF16: cols f32
//   kInt4: cols int16, then per group the f32 scale, then per group the int32 start of the sum
//   kQ*:   cols int8, then the same (kQ4_1: the f32 sum of the group in place of the start)
[[gnu::always_inline]] inline std::int64_t prepared_row_bytes(Layout layout, std::int64_t cols) {
  switch (layout) {
    case Layout::kF32:
    case Layout::kF16:
    case Layout::kBF16:
      return cols * 4;
    case Layout::kInt4:
      return cols * 2 + cols / kGroup * 8;
    case Layout::kQ4_0:
    case Layout::kQ4_1:
    case Layout::kQ8_0:
      return cols + cols / kGroup * 8;
  }
  return 0;
}

// Where the parts of a quantised block lie.
struct GroupOffsets {
  std::int64_t word_bytes;  // of one group
  bool has_minima;

  [[gnu::always_inline]] constexpr std::int64_t pair_bytes() const {
    return 2 * word_bytes + (has_minima ? 128 : 64);
  }
  [[gnu::always_inline]] constexpr std::int64_t words(std::int64_t g) const {
    return g / 2 * pair_bytes() + g % 2 * word_bytes;
  }
  [[gnu::always_inline]] constexpr std::int64_t scales(std::int64_t g) const {
    return g / 2 * pair_bytes() + 2 * word_bytes + g % 2 * 32;
  }
  [[gnu::always_inline]] constexpr std::int64_t minima(std::int64_t g) const {
    return scales(g) + 64;
  }
};
inline constexpr GroupOffsets kNibbleGroups{256, false};
inline constexpr GroupOffsets kNibbleMinimumGroups{256, true};
inline constexpr GroupOffsets kByteGroups{512, false};

[[gnu::always_inline]] inline bool is_quantized(Layout layout) {
  return layout >= Layout::kInt4;
}

struct MatmulArgs {
  PackedMatrix weight;
  std::int64_t row_begin = 0;  // weight rows (result columns) wanted
  std::int64_t row_end = 0;
  const std::uint8_t* x = nullptr;         // prepared rows
  std::int64_t x_stride = 0;               // bytes
  const std::int32_t* x_rows = nullptr;    // result i reads x row x_rows[i]; null: row i
  std::int64_t count = 0;                  // results
  float* out = nullptr;                    // column of weight row r: out[r - out_first]
  std::int64_t out_stride = 0;             // floats
  const std::int32_t* out_rows = nullptr;  // result i goes to out row out_rows[i]; null: row i
  std::int64_t out_first = 0;
};

// Scores and values of one query head tile over one step of at most 64 keys.
struct AttentionTile {
  const float* query = nullptr;  // [heads, key_dim]
  std::int64_t heads = 0;        // at most kMaxHeadTile
  std::int64_t key_dim = 0;      // a multiple of 16
  std::int64_t value_dim = 0;    // a multiple of 16
  float scale = 0;
  float* out = nullptr;  // [heads, value_dim], unnormalised until finish_attention
  float* max = nullptr;  // [heads] running maximum
  float* sum = nullptr;  // [heads] running sum
};
inline constexpr std::int64_t kMaxHeadTile = 4;
inline constexpr std::int64_t kMaxStepKeys = 64;

// The cache rows of one step in position order.
struct AttentionKeys {
  std::int64_t count = 0;
  const float* keys[kMaxStepKeys];
  const float* values[kMaxStepKeys];
};

struct Kernels {
  const char* name = nullptr;
  // Columns [32 * group_begin, + 32 * group_count) of a quantised row of `cols` columns.
  void (*quantize)(Layout layout, const float* x, std::int64_t group_begin,
                   std::int64_t group_count, std::int64_t cols, std::uint8_t* row) = nullptr;
  void (*matmul)(const MatmulArgs& args) = nullptr;
  // One step; the keys of the `next` one are only prefetched.
  void (*attention_step)(const AttentionTile& tile, const AttentionKeys& now,
                         const AttentionKeys& next) = nullptr;
  void (*attention_finish)(const AttentionTile& tile) = nullptr;
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t size,
                   float* out) = nullptr;
  void (*add)(float* x, const float* delta, std::int64_t size) = nullptr;  // x += delta
  // out = a * sum of weights[k] * rows[k] in order, then + shared (if any).
  void (*weighted_sum)(const float* weights, const float* const* rows, std::int64_t count,
                       const float* shared, std::int64_t size, float* out) = nullptr;
  void (*silu_mul)(const float* gate, const float* up, std::int64_t size, float* out) = nullptr;
};

// Null where this machine (or this build's target) lacks the instructions.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace coppice::cpu::simd
