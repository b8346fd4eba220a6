#include "engine/batch_builder.h"

#include <algorithm>

namespace coppice {
namespace {

// Host side of the rows of a prefill step.
struct HostRows {
  std::vector<std::int32_t> token_ids, positions, slots, seq_of_row, kv_len, path_len, path;

  void add(const Sequence& sequence, std::int64_t position, Provenance provenance,
           std::int64_t max_path) {
    const auto block = static_cast<std::size_t>(position / kBlockSize);
    const auto slot = static_cast<std::int32_t>(sequence.table.blocks()[block] * kBlockSize +
                                                position % kBlockSize);
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
  std::int64_t size() const { return std::ssize(token_ids); }
};

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
  HostRows rows;
  std::vector<std::int32_t> output_rows, output_positions, output_seqs, output_slots;
  const auto places = static_cast<std::size_t>(num_places);
  // By place: the row of its last prompt token, the root of a tree without nodes; -1: none.
  std::vector<std::int64_t> last_rows(places, -1);
  std::int64_t longest = 0;
  for (const PrefillChunk& chunk : chunks) {
    const Sequence& sequence = *chunk.sequence;
    for (std::int64_t i = 0; i < chunk.count; ++i)
      rows.add(sequence, chunk.begin + i, provenance, buffers_.sizes().max_path);
    longest = std::max(longest, chunk.begin + chunk.count);
    if (!chunk.samples) continue;
    last_rows[static_cast<std::size_t>(sequence.place)] = rows.size() - 1;
    upload_int(buffers_.context_len, sequence.place, sequence.prompt_len - 1);
  }
  std::vector<std::int32_t> counts(places, -1), offsets(places + 1, 0);
  for (std::size_t place = 0; place < places; ++place) {
    if (last_rows[place] >= 0) {
      const auto row = static_cast<std::size_t>(last_rows[place]);
      counts[place] = 0;
      output_rows.push_back(static_cast<std::int32_t>(row));
      output_positions.push_back(rows.positions[row]);
      output_seqs.push_back(rows.seq_of_row[row]);
      output_slots.push_back(rows.slots[row]);
    }
    offsets[place + 1] = static_cast<std::int32_t>(output_rows.size());
  }
  const std::int64_t count = rows.size(), num_outputs = std::ssize(output_rows);
  PrefillRows result;
  std::int64_t first_row = 0;
  for (const PrefillChunk& chunk : chunks) {
    for (std::int64_t i = 0; i < chunk.num_scored; ++i) {
      const auto row = static_cast<std::size_t>(first_row + i);
      output_rows.push_back(static_cast<std::int32_t>(row));
      output_positions.push_back(rows.positions[row]);
      output_seqs.push_back(rows.seq_of_row[row]);
      output_slots.push_back(rows.slots[row]);
      result.scored_tokens.push_back(
          chunk.sequence->tokens[static_cast<std::size_t>(chunk.begin + i + 1)]);
    }
    first_row += chunk.count;
  }
  const auto upload = [&](const Tensor& tensor, const std::vector<std::int32_t>& values) {
    const Tensor target = tensor.rows(0, std::ssize(values) / tensor.row_size());
    backend_.upload(target, values.data());
    return target;
  };
  upload(buffers_.results.trees.counts, counts);
  upload(buffers_.results.row_offsets, offsets);
  upload(buffers_.output_positions, output_positions);
  upload(buffers_.output_seqs, output_seqs);
  upload(buffers_.output_slots, output_slots);
  upload(buffers_.output_nodes, std::vector<std::int32_t>(output_rows.size(), 0));
  result.num_outputs = num_outputs;
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
                  .output_rows = upload(buffers_.output_rows, output_rows)};
  COPPICE_CHECK_EQ(result.batch.num_rows(), count);
  return result;
}

}  // namespace coppice
