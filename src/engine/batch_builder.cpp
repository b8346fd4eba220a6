#include "engine/batch_builder.h"

#include <algorithm>

namespace coppice {
namespace {

// Host side of the rows of a prefill step.
struct HostRows {
  std::vector<std::int32_t> token_ids, positions, slots, seq_of_row, kv_len, path_len, path;

  void add(const Sequence& sequence, std::int64_t position, Provenance provenance,
           std::int64_t max_path) {
    const std::int32_t slot = sequence.table.slot_of(position);
    const bool prompt = provenance == Provenance::kPrompt;
    token_ids.push_back(sequence.tokens[static_cast<std::size_t>(position)]);
    positions.push_back(static_cast<std::int32_t>(position));
    slots.push_back(slot);
    seq_of_row.push_back(static_cast<std::int32_t>(sequence.place));
    // A decided row reads what a root reads in a round of its own: all before it, then itself.
    kv_len.push_back(static_cast<std::int32_t>(prompt ? position + 1 : position));
    path_len.push_back(prompt ? 0 : 1);
    path.push_back(prompt ? -1 : slot);
    path.resize(path.size() + static_cast<std::size_t>(max_path - 1), -1);
  }
};

HostRows rows_of(std::span<const PrefillChunk> chunks, Provenance provenance,
                 std::int64_t max_path) {
  HostRows rows;
  for (const PrefillChunk& chunk : chunks)
    for (std::int64_t i = 0; i < chunk.count; ++i)
      rows.add(*chunk.sequence, chunk.begin + i, provenance, max_path);
  return rows;
}

// Those of them whose logits are wanted.
struct HostOutputs {
  std::vector<std::int32_t> rows, positions, seqs, slots;

  void add(const HostRows& all, std::int64_t row) {
    const auto i = static_cast<std::size_t>(row);
    rows.push_back(static_cast<std::int32_t>(row));
    positions.push_back(all.positions[i]);
    seqs.push_back(all.seq_of_row[i]);
    slots.push_back(all.slots[i]);
  }
};

// Trees of a root alone, the last prompt token of each chunk that samples; no tree elsewhere.
struct HostRoots {
  std::vector<std::int32_t> counts;   // [num_places]
  std::vector<std::int32_t> offsets;  // [num_places + 1]
};

HostRoots add_roots(std::span<const PrefillChunk> chunks, const HostRows& rows,
                    std::int64_t num_places, HostOutputs& outputs) {
  std::vector<std::int64_t> last_rows(static_cast<std::size_t>(num_places), -1);  // -1: none
  std::int64_t end = 0;
  for (const PrefillChunk& chunk : chunks) {
    end += chunk.count;
    if (chunk.samples) last_rows[static_cast<std::size_t>(chunk.sequence->place)] = end - 1;
  }
  HostRoots roots = {.counts = {}, .offsets = {0}};
  for (const std::int64_t row : last_rows) {
    if (row >= 0) outputs.add(rows, row);
    roots.counts.push_back(row >= 0 ? 0 : -1);
    roots.offsets.push_back(static_cast<std::int32_t>(outputs.rows.size()));
  }
  return roots;
}

// The rows whose next prompt token is scored; returns those tokens.
std::vector<std::int32_t> add_scored(std::span<const PrefillChunk> chunks, const HostRows& rows,
                                     HostOutputs& outputs) {
  std::vector<std::int32_t> tokens;
  std::int64_t first = 0;
  for (const PrefillChunk& chunk : chunks) {
    for (std::int64_t i = 0; i < chunk.num_scored; ++i) {
      outputs.add(rows, first + i);
      tokens.push_back(chunk.sequence->tokens[static_cast<std::size_t>(chunk.begin + i + 1)]);
    }
    first += chunk.count;
  }
  return tokens;
}

}  // namespace

void BatchBuilder::upload_int(const Tensor& tensor, std::int64_t i, std::int64_t value) {
  const auto narrow = static_cast<std::int32_t>(value);
  backend_.upload(tensor.rows(i, 1), &narrow);
}

void BatchBuilder::upload_blocks(const Sequence& sequence) {
  const auto blocks = sequence.table.blocks();
  COPPICE_CHECK_LE(std::ssize(blocks), buffers_.block_tables.shape(1));
  const Tensor row(buffers_.block_tables.row<std::int32_t>(sequence.place), DType::kI32,
                   {std::ssize(blocks)}, buffers_.block_tables.device());
  backend_.upload(row, blocks.data());
}

void BatchBuilder::sync_place(const Sequence& sequence) {
  upload_blocks(sequence);
  if (!sequence.place_changed) return;
  sampling_.set(sequence.place, sequence.request.sampling, sequence.seed, sequence.stop_ids,
                sequence.tokens, sequence.prompt_len);
  if (sequence.state == SequenceState::kDecode)
    start_decoding(sequence);
  else
    clear_place(sequence.place);
}

void BatchBuilder::clear_place(std::int64_t place) {
  upload_int(buffers_.anchors, place, -1);
}

void BatchBuilder::start_decoding(const Sequence& sequence) {
  upload_int(buffers_.context_len, sequence.place, sequence.num_computed);
  upload_int(buffers_.anchors, sequence.place, sequence.tokens.back());
}

BatchBuilder::PrefillRows BatchBuilder::build_prefill(std::span<const PrefillChunk> chunks,
                                                      Provenance provenance,
                                                      std::int64_t num_places) {
  const HostRows rows = rows_of(chunks, provenance, buffers_.sizes().max_path);
  HostOutputs outputs;
  const HostRoots roots = add_roots(chunks, rows, num_places, outputs);
  PrefillRows result;
  result.num_outputs = std::ssize(outputs.rows);
  result.scored_tokens = add_scored(chunks, rows, outputs);
  std::int64_t longest = 0;
  for (const PrefillChunk& chunk : chunks) {
    longest = std::max(longest, chunk.begin + chunk.count);
    if (chunk.samples)
      upload_int(buffers_.context_len, chunk.sequence->place, chunk.sequence->prompt_len - 1);
  }
  const auto upload = [&](const Tensor& tensor, const std::vector<std::int32_t>& values) {
    const Tensor target = tensor.rows(0, std::ssize(values) / tensor.row_size());
    backend_.upload(target, values.data());
    return target;
  };
  upload(buffers_.results.trees.counts, roots.counts);
  upload(buffers_.results.row_offsets, roots.offsets);
  upload(buffers_.output_positions, outputs.positions);
  upload(buffers_.output_seqs, outputs.seqs);
  upload(buffers_.output_slots, outputs.slots);
  upload(buffers_.output_nodes, std::vector<std::int32_t>(outputs.rows.size(), 0));
  result.batch = {.token_ids = upload(buffers_.token_ids, rows.token_ids),
                  .positions = upload(buffers_.positions, rows.positions),
                  .slots = upload(buffers_.slots, rows.slots),
                  .attention = {.seq_of_row = upload(buffers_.seq_of_row, rows.seq_of_row),
                                .kv_len = upload(buffers_.kv_len, rows.kv_len),
                                .path_len = upload(buffers_.path_len, rows.path_len),
                                .path = upload(buffers_.path, rows.path),
                                .block_tables = buffers_.block_tables.rows(0, num_places),
                                .max_kv_len = longest,
                                .provenance = provenance},
                  .output_rows = upload(buffers_.output_rows, outputs.rows)};
  return result;
}

}  // namespace coppice
