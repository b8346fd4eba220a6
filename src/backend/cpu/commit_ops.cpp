// Accept the path that the target chose, and move its cache rows into place.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/ops.h"
#include "backend/cpu/slot.h"

namespace coppice::cpu {
namespace {

std::int32_t& at(const Tensor& tensor, std::int64_t i) {
  return tensor.data<std::int32_t>()[i];
}

// The child of `node` that carries `token`, or -1.
std::int32_t find_child(const TreeBuffers& trees, std::int64_t b, std::int32_t node,
                        std::int32_t token) {
  const std::int32_t* parents = trees.parents.row<std::int32_t>(b);
  const std::int32_t* tokens = trees.tokens.row<std::int32_t>(b);
  for (std::int32_t child = node + 1; child <= at(trees.counts, b); ++child)
    if (parents[child] == node && tokens[child] == token) return child;
  return -1;
}

bool is_stop_id(const SamplingBuffers& sampling, std::int64_t b, std::int32_t token) {
  const std::int32_t* ids = sampling.stop_ids.row<std::int32_t>(b);
  const std::int32_t* end = ids + sampling.stop_ids.shape(1);
  return token >= 0 && std::find(ids, end, token) != end;
}

// Appends one emitted token; says whether it ends the sequence.
FinishReason emit(const SamplingBuffers& sampling, std::int64_t b, std::int32_t token) {
  auto& history_len = at(sampling.history_len, b);
  COPPICE_CHECK_LT(history_len, sampling.history.shape(1));
  sampling.history.row<std::int32_t>(b)[history_len++] = token;
  if (is_stop_id(sampling, b, token)) return FinishReason::kStop;
  const std::int32_t emitted = history_len - at(sampling.prompt_len, b);
  return emitted >= at(sampling.max_tokens, b) ? FinishReason::kLength : FinishReason::kNone;
}

void clear_outputs(const AcceptPathArgs& args, std::int64_t b) {
  const std::int64_t max_path = args.emitted.shape(1);
  std::fill_n(args.accepted_rows.row<std::int32_t>(b), max_path, -1);
  std::fill_n(args.emitted.row<std::int32_t>(b), max_path, -1);
  for (std::int64_t i = b * max_path; i < (b + 1) * max_path; ++i) {
    at(args.move_src, i) = at(args.move_dst, i) = -1;
    at(args.feature_rows, i) = at(args.feature_slots, i) = -1;
    at(args.feature_positions, i) = 0;
  }
  at(args.num_emitted, b) = 0;
  at(args.finish_reason, b) = static_cast<std::int32_t>(FinishReason::kNone);
}

// Row `row` becomes the token at the end of the context plus `count`.
void accept_row(const AcceptPathArgs& args, std::int64_t b, std::int32_t count, std::int32_t row) {
  const std::int64_t i = b * args.emitted.shape(1) + count;
  const std::int32_t position = at(args.context_len, b) + count;
  const std::int32_t from = at(args.slots, row), to = slot_of(args.block_tables, b, position);
  args.accepted_rows.row<std::int32_t>(b)[count] = row;
  at(args.feature_rows, i) = row;
  at(args.feature_positions, i) = position;
  at(args.feature_slots, i) = to;
  if (from != to) {
    at(args.move_src, i) = from;
    at(args.move_dst, i) = to;
  }
}

void accept_sequence(const AcceptPathArgs& args, std::int64_t b) {
  clear_outputs(args, b);
  if (at(args.trees.counts, b) < 0) return;
  std::int32_t count = 0, node = 0;
  FinishReason finish = FinishReason::kNone;
  while (node >= 0 && finish == FinishReason::kNone) {
    const std::int32_t row = at(args.row_offsets, b) + node;
    if (at(args.finite, row) == 0) {
      finish = FinishReason::kNotFinite;
      break;
    }
    COPPICE_CHECK_LT(count, args.emitted.shape(1));
    const std::int32_t choice = at(args.choices, row);
    accept_row(args, b, count, row);
    args.emitted.row<std::int32_t>(b)[count++] = choice;
    finish = emit(args.sampling, b, choice);
    node = find_child(args.trees, b, node, choice);
  }
  at(args.num_emitted, b) = count;
  at(args.finish_reason, b) = static_cast<std::int32_t>(finish);
  at(args.context_len, b) += count;
  if (finish != FinishReason::kNone)
    at(args.anchors, b) = -1;
  else
    at(args.anchors, b) = args.emitted.row<std::int32_t>(b)[count - 1];
}

}  // namespace

void accept_path(const AcceptPathArgs& args, ThreadPool&) {
  for (std::int64_t b = 0; b < args.trees.counts.shape(0); ++b) accept_sequence(args, b);
}

void move_kv(const MoveKvArgs& args, ThreadPool& pool) {
  const std::int64_t count = args.src.shape(0);
  const auto num_planes = static_cast<std::int64_t>(args.planes.size());
  pool.parallel_for(num_planes, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::byte> staged;
    for (std::int64_t p = begin; p < end; ++p) {
      const Tensor& plane = args.planes[static_cast<std::size_t>(p)];
      const auto row_bytes =
          static_cast<std::size_t>(plane.num_bytes() / (plane.shape(0) * plane.shape(1)));
      auto* base = static_cast<std::byte*>(plane.raw());
      const auto address = [&](std::int32_t slot) {
        return base + static_cast<std::size_t>(slot) * row_bytes;
      };
      staged.resize(static_cast<std::size_t>(count) * row_bytes);
      // All sources are read before any destination is written.
      for (std::int64_t i = 0; i < count; ++i)
        if (at(args.src, i) >= 0)
          std::memcpy(&staged[static_cast<std::size_t>(i) * row_bytes], address(at(args.src, i)),
                      row_bytes);
      for (std::int64_t i = 0; i < count; ++i)
        if (at(args.src, i) >= 0)
          std::memcpy(address(at(args.dst, i)), &staged[static_cast<std::size_t>(i) * row_bytes],
                      row_bytes);
    }
  });
}

}  // namespace coppice::cpu
