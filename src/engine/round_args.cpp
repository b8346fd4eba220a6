#include "engine/round_args.h"

namespace coppice {

TreeBuffers tree_rows(const RoundBuffers& buffers, std::int64_t batch) {
  const TreeBuffers& all = buffers.results.trees;
  return {.tokens = all.tokens.rows(0, batch),
          .parents = all.parents.rows(0, batch),
          .depths = all.depths.rows(0, batch),
          .scores = all.scores.rows(0, batch),
          .counts = all.counts.rows(0, batch)};
}

DraftBatch draft_args(const RoundBuffers& buffers, const SamplingState& sampling,
                      std::int64_t batch) {
  return {.anchors = buffers.anchors.rows(0, batch),
          .context_len = buffers.context_len.rows(0, batch),
          .block_tables = buffers.block_tables.rows(0, batch),
          .budgets = buffers.budgets.rows(0, batch),
          .min_scores = buffers.min_scores.rows(0, batch),
          .sampling = sampling.view(batch),
          .trees = tree_rows(buffers, batch)};
}

CompileTreeArgs compile_args(const RoundBuffers& buffers, std::int64_t batch, std::int64_t rows,
                             bool cut_by_cost) {
  return {.trees = tree_rows(buffers, batch),
          .context_len = buffers.context_len.rows(0, batch),
          .block_tables = buffers.block_tables.rows(0, batch),
          .cost_ms = cut_by_cost ? buffers.cost_ms : Tensor(),
          .bucket_rows = cut_by_cost ? buffers.bucket_rows : Tensor(),
          .calibration = cut_by_cost ? buffers.calibration : Tensor(),
          .token_ids = buffers.token_ids.rows(0, rows),
          .positions = buffers.positions.rows(0, rows),
          .slots = buffers.slots.rows(0, rows),
          .seq_of_row = buffers.seq_of_row.rows(0, rows),
          .node_of_row = buffers.node_of_row.rows(0, rows),
          .kv_len = buffers.kv_len.rows(0, rows),
          .path_len = buffers.path_len.rows(0, rows),
          .path = buffers.path.rows(0, rows),
          .row_offsets = buffers.results.row_offsets.rows(0, batch + 1)};
}

ForwardBatch verify_args(const RoundBuffers& buffers, std::int64_t batch, std::int64_t rows) {
  return {.token_ids = buffers.token_ids.rows(0, rows),
          .positions = buffers.positions.rows(0, rows),
          .slots = buffers.slots.rows(0, rows),
          .attention = {.seq_of_row = buffers.seq_of_row.rows(0, rows),
                        .kv_len = buffers.kv_len.rows(0, rows),
                        .path_len = buffers.path_len.rows(0, rows),
                        .path = buffers.path.rows(0, rows),
                        .block_tables = buffers.block_tables.rows(0, batch),
                        .max_kv_len = buffers.sizes().max_blocks * kBlockSize,
                        .provenance = Provenance::kDecided},
          .output_rows = {}};
}

AcceptPathArgs accept_args(const RoundBuffers& buffers, const SamplingState& sampling,
                           std::int64_t batch, const Verifier::Choices& choices,
                           const Tensor& slots) {
  const RoundResults& results = buffers.results;
  const std::int64_t paths = batch * buffers.sizes().max_path;
  return {.trees = tree_rows(buffers, batch),
          .row_offsets = results.row_offsets.rows(0, batch + 1),
          .choices = choices.choices,
          .finite = choices.finite,
          .slots = slots.rows(0, choices.choices.shape(0)),
          .block_tables = buffers.block_tables.rows(0, batch),
          .sampling = sampling.view(batch),
          .context_len = buffers.context_len.rows(0, batch),
          .anchors = buffers.anchors.rows(0, batch),
          .accepted_rows = results.accepted_rows.rows(0, batch),
          .emitted = results.emitted.rows(0, batch),
          .num_emitted = results.num_emitted.rows(0, batch),
          .finish_reason = results.finish_reason.rows(0, batch),
          .move_src = buffers.move_src.rows(0, paths),
          .move_dst = buffers.move_dst.rows(0, paths),
          .feature_rows = buffers.feature_rows.rows(0, paths),
          .feature_positions = buffers.feature_positions.rows(0, paths),
          .feature_slots = buffers.feature_slots.rows(0, paths)};
}

MoveKvArgs move_args(const RoundBuffers& buffers, std::int64_t batch,
                     std::span<const Tensor> planes) {
  const std::int64_t paths = batch * buffers.sizes().max_path;
  return {.planes = planes,
          .src = buffers.move_src.rows(0, paths),
          .dst = buffers.move_dst.rows(0, paths)};
}

void append_features(Backend& backend, const RoundBuffers& buffers, std::int64_t batch,
                     const Tensor& features, DflashModel& model, PagedKvCache& cache) {
  const std::int64_t paths = batch * buffers.sizes().max_path;
  const Tensor accepted = buffers.context_features.rows(0, paths);
  backend.gather_rows(
      {.src = features, .rows = buffers.feature_rows.rows(0, paths), .out = accepted});
  model.append_context(accepted, buffers.feature_positions.rows(0, paths),
                       buffers.feature_slots.rows(0, paths), cache, Provenance::kDecided);
}

}  // namespace coppice
