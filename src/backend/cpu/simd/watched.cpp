#include "backend/cpu/simd/watched.h"

#include <cstddef>

#if defined(__SANITIZE_THREAD__)

extern "C" void __tsan_read_range(void* begin, unsigned long bytes);
extern "C" void __tsan_write_range(void* begin, unsigned long bytes);

namespace coppice::cpu::simd {
namespace {

template <typename T>
void reads(const T* begin, std::int64_t count) {
  if (count > 0)
    __tsan_read_range(const_cast<T*>(begin), static_cast<std::size_t>(count) * sizeof(T));
}

template <typename T>
void writes(T* begin, std::int64_t count) {
  if (count > 0) __tsan_write_range(begin, static_cast<std::size_t>(count) * sizeof(T));
}

void announce(const MatmulArgs& args) {
  const PackedMatrix& w = args.weight;
  if (args.count == 0 || args.row_begin >= args.row_end) return;
  const std::int64_t first_block = args.row_begin / kBlockRows;
  const std::int64_t end_block = (args.row_end + kBlockRows - 1) / kBlockRows;
  reads(w.data + first_block * w.block_bytes, (end_block - first_block) * w.block_bytes);
  if (args.x_rows != nullptr) reads(args.x_rows, args.count);
  if (args.out_rows != nullptr) reads(args.out_rows, args.count);
  for (std::int64_t i = 0; i < args.count; ++i) {
    const std::int64_t x_row = args.x_rows != nullptr ? args.x_rows[i] : i;
    const std::int64_t out_row = args.out_rows != nullptr ? args.out_rows[i] : i;
    reads(args.x + x_row * args.x_stride, prepared_row_bytes(w.layout, w.cols));
    writes(args.out + out_row * args.out_stride + (args.row_begin - args.out_first),
           args.row_end - args.row_begin);
  }
}

template <const Kernels* (*kTable)()>
struct Watched {
  static void quantize(Layout layout, const float* x, std::int64_t group_begin,
                       std::int64_t group_count, std::int64_t cols, std::uint8_t* row) {
    const std::int64_t value_bytes = layout == Layout::kInt4 ? 2 : 1, groups = cols / kGroup;
    std::uint8_t* const scales = row + cols * value_bytes;
    reads(x, group_count * kGroup);
    writes(row + group_begin * kGroup * value_bytes, group_count * kGroup * value_bytes);
    writes(scales + 4 * group_begin, 4 * group_count);
    writes(scales + 4 * (groups + group_begin), 4 * group_count);
    kTable()->quantize(layout, x, group_begin, group_count, cols, row);
  }

  static void matmul(const MatmulArgs& args) {
    announce(args);
    kTable()->matmul(args);
  }

  static void attention_step(const AttentionTile& tile, const AttentionKeys& now,
                             const AttentionKeys& next) {
    reads(tile.query, tile.heads * tile.key_dim);
    for (std::int64_t i = 0; i < now.count; ++i) {
      reads(now.keys[i], tile.key_dim);
      reads(now.values[i], tile.value_dim);
    }
    writes(tile.out, tile.heads * tile.value_dim);
    writes(tile.max, tile.heads);
    writes(tile.sum, tile.heads);
    kTable()->attention_step(tile, now, next);
  }

  static void attention_finish(const AttentionTile& tile) {
    reads(tile.sum, tile.heads);
    writes(tile.out, tile.heads * tile.value_dim);
    kTable()->attention_finish(tile);
  }

  static void rms_norm(const float* x, const float* weight, float eps, std::int64_t size,
                       float* out) {
    reads(x, size);
    reads(weight, size);
    writes(out, size);
    kTable()->rms_norm(x, weight, eps, size, out);
  }

  static void add(float* x, const float* delta, std::int64_t size) {
    reads(delta, size);
    writes(x, size);
    kTable()->add(x, delta, size);
  }

  static void weighted_sum(const float* weights, const float* const* rows, std::int64_t count,
                           const float* shared, std::int64_t size, float* out) {
    reads(weights, count);
    reads(rows, count);
    for (std::int64_t k = 0; k < count; ++k) reads(rows[k], size);
    if (shared != nullptr) reads(shared, size);
    writes(out, size);
    kTable()->weighted_sum(weights, rows, count, shared, size, out);
  }

  static void silu_mul(const float* gate, const float* up, std::int64_t size, float* out) {
    reads(gate, size);
    reads(up, size);
    writes(out, size);
    kTable()->silu_mul(gate, up, size, out);
  }

  static const Kernels* table() {
    static const Kernels kernels{.name = kTable()->name,
                                 .quantize = quantize,
                                 .matmul = matmul,
                                 .attention_step = attention_step,
                                 .attention_finish = attention_finish,
                                 .rms_norm = rms_norm,
                                 .add = add,
                                 .weighted_sum = weighted_sum,
                                 .silu_mul = silu_mul};
    return &kernels;
  }
};

}  // namespace

const Kernels* watched_avx2_table() {
  return Watched<avx2_table>::table();
}

const Kernels* watched_avx512_table() {
  return Watched<avx512_table>::table();
}

}  // namespace coppice::cpu::simd

#else

namespace coppice::cpu::simd {

const Kernels* watched_avx2_table() {
  return avx2_table();
}

const Kernels* watched_avx512_table() {
  return avx512_table();
}

}  // namespace coppice::cpu::simd

#endif
