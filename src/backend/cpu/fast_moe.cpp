// Two passes over the chosen experts: gate and up into the activations of down, then down and the
// weighted sum. Each expert's weights are read once for all rows that chose it.
#include "backend/cpu/fast_moe.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/fast_linear.h"
#include "backend/cpu/moe_ops.h"
#include "backend/dequantize.h"

namespace coppice::cpu {
namespace {

using simd::kBlockRows;

constexpr std::int64_t kMaxTopK = 64;
constexpr std::int64_t kRowsPerPass = 16;  // rows whose gate and up halves wait on the stack

std::int64_t groups_of(std::int64_t columns) {
  return (columns + kQuantGroup - 1) / kQuantGroup;
}

// What pass one leaves for pass two: the hidden activations, one prepared row per slot.
struct HiddenRows {
  std::uint8_t* data;
  std::int64_t stride;  // bytes
};

// Columns [32 g, 32 g + 32) of silu(gate x) * up x for the rows of one expert.
void gate_up_group(const simd::Kernels& kernels, const PackedExpert& expert, std::int64_t g,
                   const PreparedRows& x, const std::int32_t* rows, const std::int32_t* slots,
                   std::int64_t count, const HiddenRows& hidden) {
  const simd::PackedMatrix& down = expert.down.view;
  const std::int64_t first = g * kQuantGroup,
                     last = std::min(first + kQuantGroup, expert.gate.view.rows);
  float gate[kRowsPerPass * kQuantGroup], up[kRowsPerPass * kQuantGroup], product[kQuantGroup];
  for (std::int64_t i = 0; i < count; i += kRowsPerPass) {
    const std::int64_t pass = std::min(kRowsPerPass, count - i);
    simd::MatmulArgs args{.weight = expert.gate.view,
                          .row_begin = first,
                          .row_end = last,
                          .x = x.data,
                          .x_stride = x.stride,
                          .x_rows = rows + i,
                          .count = pass,
                          .out = gate,
                          .out_stride = kQuantGroup,
                          .out_first = first};
    kernels.matmul(args);
    args.weight = expert.up.view;
    args.out = up;
    kernels.matmul(args);
    for (std::int64_t row = 0; row < pass; ++row) {
      std::uint8_t* const out = hidden.data + slots[i + row] * hidden.stride;
      kernels.silu_mul(gate + row * kQuantGroup, up + row * kQuantGroup, last - first, product);
      if (simd::is_quantized(down.layout)) {
        kernels.quantize(down.layout, product, g, 1, down.cols, out);
      } else {
        auto* const columns = reinterpret_cast<float*>(out) + first;
        std::memcpy(columns, product, static_cast<std::size_t>(last - first) * sizeof(float));
        if (last % 2 != 0) columns[last - first] = 0;  // float layouts read pairs
      }
    }
  }
}

// Columns [begin, end) of every row: the sum over its own slots in order, then shared.
void combine_columns(const simd::Kernels& kernels, const MoeExpertsArgs& args, const float* down,
                     std::int64_t begin, std::int64_t end) {
  const std::int64_t top_k = args.topk_ids.shape(1), hidden_size = args.experts->hidden_size;
  float weights[kMaxTopK];
  const float* rows[kMaxTopK];
  for (std::int64_t t = 0; t < args.x.shape(0); ++t) {
    std::int64_t used = 0;
    for (std::int64_t k = 0; k < top_k; ++k) {
      if (args.topk_ids.row<std::int32_t>(t)[k] < 0) continue;
      weights[used] = args.topk_weights.row<float>(t)[k];
      rows[used++] = down + (t * top_k + k) * hidden_size + begin;
    }
    const float* const shared = args.shared.empty() ? nullptr : args.shared.row<float>(t) + begin;
    kernels.weighted_sum(weights, rows, used, shared, end - begin, args.out.row<float>(t) + begin);
  }
}

}  // namespace

FastMoe::Route FastMoe::sort_by_expert(const MoeExpertsArgs& args) {
  const std::int64_t num_rows = args.topk_ids.shape(0), top_k = args.topk_ids.shape(1);
  const std::int64_t num_experts = args.experts->num_experts, num_slots = num_rows * top_k;
  auto* const next = route_workspace_.get<std::int32_t>(3 * num_experts + 1 + 2 * num_slots);
  std::int32_t* const active = next + num_experts;
  std::int32_t* const begins = active + num_experts;
  std::int32_t* const slots = begins + num_experts + 1;
  std::int32_t* const rows = slots + num_slots;
  std::fill_n(next, num_experts, 0);
  const auto for_each_slot = [&](auto&& body) {
    for (std::int64_t t = 0; t < num_rows; ++t)
      for (std::int64_t k = 0; k < top_k; ++k)
        if (const std::int32_t id = args.topk_ids.row<std::int32_t>(t)[k]; id >= 0)
          body(id, static_cast<std::int32_t>(t * top_k + k), static_cast<std::int32_t>(t));
  };
  for_each_slot([&](std::int32_t id, std::int32_t, std::int32_t) {
    COPPICE_CHECK_LT(id, num_experts);
    ++next[id];
  });
  Route route{.experts = active, .begins = begins, .slots = slots, .rows = rows};
  begins[0] = 0;
  for (std::int32_t id = 0; id < num_experts; ++id) {
    if (next[id] == 0) continue;
    const std::int32_t begin = begins[route.num_active];
    active[route.num_active++] = id;
    begins[route.num_active] = begin + next[id];
    next[id] = begin;
  }
  for_each_slot([&](std::int32_t id, std::int32_t slot, std::int32_t row) {
    slots[next[id]] = slot;
    rows[next[id]++] = row;
  });
  return route;
}

void FastMoe::run(const simd::Kernels& kernels, const MoeExpertsArgs& args,
                  const std::vector<PackedExpert>& experts, ThreadPool& pool) {
  const std::int64_t num_rows = args.x.shape(0), num_slots = args.topk_ids.num_elements();
  const std::int64_t hidden_size = args.experts->hidden_size;
  const std::int64_t groups = groups_of(args.experts->intermediate_size);
  COPPICE_CHECK_LE(args.topk_ids.shape(1), kMaxTopK);
  COPPICE_CHECK_EQ(args.x.row_size(), hidden_size);
  if (num_rows == 0) return;
  const Route route = sort_by_expert(args);
  const PreparedRows x =
      prepare_rows(kernels, experts[0].gate.view, args.x.data<float>(), args.x.row_stride(),
                   num_rows, hidden_size, x_workspace_, pool);
  const simd::PackedMatrix& first_down = experts[0].down.view;
  HiddenRows hidden{
      .data = nullptr,
      .stride = (simd::prepared_row_bytes(first_down.layout, first_down.cols) + 63) / 64 * 64};
  hidden.data = hidden_workspace_.get<std::uint8_t>(num_slots * hidden.stride);
  pool.parallel_for(route.num_active * groups, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t a = item / groups;
      const std::int32_t first = route.begins[a];
      gate_up_group(kernels, experts[static_cast<std::size_t>(route.experts[a])], item % groups, x,
                    route.rows + first, route.slots + first, route.begins[a + 1] - first, hidden);
    }
  });
  float* const down = down_workspace_.get<float>(num_slots * hidden_size);
  const std::int64_t blocks = (hidden_size + kBlockRows - 1) / kBlockRows;
  pool.parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t row_begin = begin * kBlockRows;
    const std::int64_t row_end = std::min(end * kBlockRows, hidden_size);
    for (std::int64_t a = 0; a < route.num_active; ++a) {
      const std::int32_t first = route.begins[a];
      kernels.matmul({.weight = experts[static_cast<std::size_t>(route.experts[a])].down.view,
                      .row_begin = row_begin,
                      .row_end = row_end,
                      .x = hidden.data,
                      .x_stride = hidden.stride,
                      .x_rows = route.slots + first,
                      .count = route.begins[a + 1] - first,
                      .out = down,
                      .out_stride = hidden_size,
                      .out_rows = route.slots + first});
    }
    combine_columns(kernels, args, down, row_begin, row_end);
  });
}

}  // namespace coppice::cpu
