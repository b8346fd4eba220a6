#include "backend/cpu/fast_linear.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/ops.h"
#include "backend/dequantize.h"

namespace coppice::cpu {
namespace {

using simd::kBlockRows;

// Below this much work a second thread costs more than it saves.
constexpr std::int64_t kMinBytesPerThread = 16 << 10;

std::int64_t min_blocks(const simd::PackedMatrix& weight, std::int64_t count) {
  return std::max<std::int64_t>(
      1, kMinBytesPerThread / (weight.block_bytes * std::max<std::int64_t>(count, 1)));
}

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

PreparedRows prepare_rows(const simd::Kernels& kernels, const simd::PackedMatrix& weight,
                          const float* x, std::int64_t x_stride, std::int64_t count,
                          std::int64_t cols, Workspace& workspace, ThreadPool& pool) {
  const bool quantized = simd::is_quantized(weight.layout);
  if (!quantized && cols == weight.cols)
    return {reinterpret_cast<const std::uint8_t*>(x), x_stride * 4};
  const std::int64_t stride = round_up(simd::prepared_row_bytes(weight.layout, weight.cols), 64);
  auto* const rows = workspace.get<std::uint8_t>(count * stride);
  pool.parallel_for(count, kMinRowsPerThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* const from = x + i * x_stride;
      if (quantized) {
        kernels.quantize(weight.layout, from, 0, cols / kQuantGroup, cols, rows + i * stride);
      } else {
        auto* const to = reinterpret_cast<float*>(rows + i * stride);
        std::memcpy(to, from, static_cast<std::size_t>(cols) * sizeof(float));
        std::fill(to + cols, to + weight.cols, 0.0f);
      }
    }
  });
  return {rows, stride};
}

void fast_linear(const simd::Kernels& kernels, const LinearArgs& args, const OwnedMatrix& weight,
                 Workspace& workspace, ThreadPool& pool) {
  const simd::PackedMatrix& w = weight.view;
  const std::int64_t count = args.x.shape(0), cols = args.weight->in_features;
  COPPICE_CHECK_EQ(args.x.row_size(), cols);
  COPPICE_CHECK_EQ(args.out.row_size(), w.rows);
  if (count == 0) return;
  const PreparedRows x = prepare_rows(kernels, w, args.x.data<float>(), args.x.row_stride(), count,
                                      cols, workspace, pool);
  const std::int64_t blocks = (w.rows + kBlockRows - 1) / kBlockRows;
  pool.parallel_for(blocks, min_blocks(w, count), [&](std::int64_t begin, std::int64_t end) {
    kernels.matmul({.weight = w,
                    .row_begin = begin * kBlockRows,
                    .row_end = std::min(end * kBlockRows, w.rows),
                    .x = x.data,
                    .x_stride = x.stride,
                    .count = count,
                    .out = args.out.data<float>(),
                    .out_stride = args.out.row_stride()});
  });
}

void fast_head_linear(const simd::Kernels& kernels, const HeadLinearArgs& args,
                      const OwnedMatrix& weight, Workspace& workspace, ThreadPool& pool) {
  const simd::PackedMatrix& w = weight.view;
  const std::int64_t count = args.x.shape(0), num_heads = args.x.shape(1), k = args.x.shape(2);
  const std::int64_t n = args.out.shape(2);
  COPPICE_CHECK_EQ(args.weight->in_features, k);
  COPPICE_CHECK_EQ(w.rows, num_heads * n);
  COPPICE_CHECK_EQ(args.out.shape(1), num_heads);
  if (count == 0) return;
  // Prepared rows are [count, num_heads]; floats stay where they are.
  const bool in_place = !simd::is_quantized(w.layout) && w.cols == k;
  COPPICE_CHECK(in_place || args.x.is_dense(), args.x.describe());
  const PreparedRows x =
      in_place ? PreparedRows{reinterpret_cast<const std::uint8_t*>(args.x.data<float>()), k * 4}
               : prepare_rows(kernels, w, args.x.data<float>(), k, count * num_heads, k, workspace,
                              pool);
  const std::int64_t x_stride = in_place ? args.x.row_stride() * 4 : num_heads * x.stride;
  const std::int64_t units_per_head = (n + kBlockRows - 1) / kBlockRows;
  pool.parallel_for(num_heads * units_per_head, min_blocks(w, count),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t unit = begin; unit < end; ++unit) {
                        const std::int64_t h = unit / units_per_head;
                        const std::int64_t first = h * n + unit % units_per_head * kBlockRows;
                        kernels.matmul({.weight = w,
                                        .row_begin = first,
                                        .row_end = std::min(first + kBlockRows, (h + 1) * n),
                                        .x = x.data + h * x.stride,
                                        .x_stride = x_stride,
                                        .count = count,
                                        .out = args.out.data<float>(),
                                        .out_stride = args.out.row_stride()});
                      }
                    });
}

}  // namespace coppice::cpu
