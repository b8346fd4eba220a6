#include "engine/decode_round.h"

#include <algorithm>

#include "engine/round_args.h"

namespace coppice {
namespace {

GraphKey graph_key(GraphKind kind, const RoundShape& shape) {
  const SampleOptions& sample = shape.sample;
  const std::int32_t variant = (sample.greedy ? 1 : 0) | (sample.log_probs ? 2 : 0) |
                               (sample.top_log_probs ? 4 : 0) | (shape.drafting ? 8 : 0) |
                               (shape.cut_by_cost ? 16 : 0) | (sample.masked ? 32 : 0);
  return {.kind = static_cast<std::int32_t>(kind),
          .batch = static_cast<std::int32_t>(shape.batch),
          .rows = static_cast<std::int32_t>(shape.max_rows),
          .variant = variant};
}

}  // namespace

DecodeRound::DecodeRound(const RoundParts& parts)
    : parts_(parts), host_masks_(parts.backend.allocate_host(parts.verifier.mask_bytes())) {}

std::int64_t DecodeRound::launch(const RoundShape& shape) {
  std::int64_t rows = shape.max_rows;
  const auto propose = [&] {
    start();
    draft(shape);
    build_trees(shape);
    cut_and_compile(shape);
    rows = rows_to_verify(shape);
  };
  const auto judge = [&] {
    choose(shape, rows);
    commit(shape, rows);
  };
  if (shape.sample.masked) {
    run(GraphKind::kPropose, shape, propose);
    const std::int64_t proposed = parts_.buffers.start_results(false);
    run(GraphKind::kForward, shape, [&] { forward(shape, rows); });
    mask(shape, rows, proposed);
    run(GraphKind::kJudge, shape, judge);
  } else {
    run(GraphKind::kRound, shape, [&] {
      propose();
      forward(shape, rows);
      judge();
    });
  }
  choices_ = parts_.verifier.outputs(rows, rows);
  // Without drafts every row is decided, and its features wait until the drafter is wanted.
  if (parts_.drafter_model != nullptr && !shape.drafting)
    parts_.backlog->add(choices_.features, parts_.buffers.positions.rows(0, rows),
                        parts_.buffers.slots.rows(0, rows));
  return parts_.buffers.start_results(shape.sample.log_probs);
}

void DecodeRound::run(GraphKind kind, const RoundShape& shape, const std::function<void()>& body) {
  if (shape.eager)
    body();
  else
    parts_.backend.run_graph(graph_key(kind, shape), body);
}

// While a GPU computes the rows the host, which has seen the trees, says what each node may choose.
void DecodeRound::mask(const RoundShape& shape, std::int64_t rows, std::int64_t proposed) {
  const RoundResults& trees = parts_.buffers.finish_results(proposed);
  const Tensor allowed = parts_.verifier.outputs(rows, rows).allowed;
  // The copy that the round before sent from here is over: it was enqueued before the trees of this
  // round, and those have come.
  const auto bytes = static_cast<std::size_t>(allowed.num_bytes());
  const std::span masks(static_cast<std::int32_t*>(host_masks_.data()),
                        bytes / sizeof(std::int32_t));
  std::ranges::fill(masks, -1);
  shape.fill_masks(trees, masks);
  parts_.backend.start_upload(allowed, masks.data());
}

void DecodeRound::draft(const RoundShape& shape) {
  if (shape.drafting)
    parts_.drafter.draft(draft_args(parts_.buffers, parts_.sampling, shape.batch));
  finish(Verb::kDraft);
}

void DecodeRound::build_trees(const RoundShape& shape) {
  Drafter& drafter = shape.drafting ? parts_.drafter : parts_.no_drafter;
  drafter.build_tree(draft_args(parts_.buffers, parts_.sampling, shape.batch));
  finish(Verb::kTreeBuild);
}

void DecodeRound::cut_and_compile(const RoundShape& shape) {
  parts_.backend.compile_tree(
      compile_args(parts_.buffers, shape.batch, shape.max_rows, shape.cut_by_cost));
  finish(Verb::kCutAndCompile);
}

void DecodeRound::forward(const RoundShape& shape, std::int64_t rows) {
  parts_.verifier.forward(verify_args(parts_.buffers, shape.batch, rows),
                          parts_.verifier.outputs(rows, rows));
}

void DecodeRound::choose(const RoundShape& shape, std::int64_t rows) {
  RoundBuffers& b = parts_.buffers;
  const Verifier::Choices out = parts_.verifier.outputs(rows, rows);
  parts_.verifier.sample(out, b.positions.rows(0, rows), b.seq_of_row.rows(0, rows),
                         b.node_of_row.rows(0, rows), tree_rows(b, shape.batch),
                         parts_.sampling.view(shape.batch), shape.sample);
  finish(Verb::kVerify);
}

void DecodeRound::commit(const RoundShape& shape, std::int64_t rows) {
  const Verifier::Choices out = parts_.verifier.outputs(rows, rows);
  accept(shape.batch, out, parts_.buffers.slots);
  parts_.backend.move_kv(move_args(parts_.buffers, shape.batch, parts_.cache.planes()));
  if (parts_.drafter_model != nullptr && shape.drafting)
    append_features(parts_.backend, parts_.buffers, shape.batch, out.features,
                    *parts_.drafter_model, *parts_.drafter_cache);
  gather_log_probs(shape.batch, out, shape.sample);
  finish(Verb::kCommit);
}

void DecodeRound::accept(std::int64_t batch, const Verifier::Choices& out, const Tensor& slots) {
  parts_.backend.accept_path(accept_args(parts_.buffers, parts_.sampling, batch, out, slots));
}

// The accepted rows are the rows that chose the emitted tokens, one for one.
void DecodeRound::gather_log_probs(std::int64_t batch, const Verifier::Choices& out,
                                   const SampleOptions& options) {
  if (!options.log_probs) return;
  RoundBuffers& b = parts_.buffers;
  const std::int64_t paths = batch * b.sizes().max_path;
  const auto gather = [&](const Tensor& src, const Tensor& dst) {
    parts_.backend.gather_rows(
        {.src = src, .rows = b.feature_rows.rows(0, paths), .out = dst.rows(0, paths)});
  };
  gather(out.log_probs.reshape({out.log_probs.shape(0), 1}), b.results.log_probs);
  if (!options.top_log_probs) return;
  gather(out.top_ids, b.results.top_ids);
  gather(out.top_log_probs, b.results.top_log_probs);
}

// Captured rounds have the rows that were launched, and what the cut left free is padding. Where
// rounds run at once only the rows that are left are computed.
std::int64_t DecodeRound::rows_to_verify(const RoundShape& shape) {
  if (parts_.backend.device() != Device::kCpu) return shape.max_rows;
  std::int32_t rows = 0;
  parts_.backend.download(&rows, parts_.buffers.results.row_offsets.rows(shape.batch, 1));
  return std::max(rows, 1);  // a round without a live sequence is one of padding
}

void DecodeRound::start() {
  stamp(0);
  parts_.backend.push_range(name_of(Verb::kDraft));
}

void DecodeRound::finish(Verb verb) {
  const std::size_t next = static_cast<std::size_t>(verb) + 1;
  parts_.backend.pop_range();
  stamp(next);
  if (next < kNumVerbs) parts_.backend.push_range(name_of(static_cast<Verb>(next)));
}

// By the device's clock, or by the engine's where rounds run at once.
void DecodeRound::stamp(std::size_t i) {
  const Tensor& times = parts_.buffers.results.times;
  if (times.device() == Device::kCpu)
    times.data<std::int64_t>()[i] = parts_.clock.now_ns();
  else
    parts_.backend.write_time(times.rows(static_cast<std::int64_t>(i), 1));
}

std::array<std::int64_t, kNumVerbs> verb_ns(const RoundResults& results) {
  std::array<std::int64_t, kNumVerbs> ns{};
  const auto* times = results.times.data<std::int64_t>();
  for (std::size_t i = 0; i < kNumVerbs; ++i) ns[i] = times[i + 1] - times[i];
  return ns;
}

}  // namespace coppice
