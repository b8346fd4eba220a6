// Device memory of prefill steps and decode rounds, at fixed addresses for the engine's life, and
// the one packed block that comes back after each.
#pragma once

#include <vector>

#include "backend/backend.h"

namespace coppice {

struct RoundSizes {
  std::int64_t max_num_seqs = 0;  // B
  std::int64_t max_rows = 0;      // T: rows of the largest step
  std::int64_t max_nodes = 0;     // of one tree, without its root
  std::int64_t max_path = 0;      // nodes of one path, root included
  std::int64_t max_blocks = 0;    // of one sequence's block table
  std::int64_t num_buckets = 0;   // of the cost table
  std::int64_t feature_size = 0;  // columns of the drafter's features; 0: none
};

// What the host reads after a step. The same tensors exist on the device and, at the same offsets,
// on the host.
struct RoundResults {
  TreeBuffers trees;
  Tensor row_offsets;    // [B + 1] i32
  Tensor accepted_rows;  // [B, max_path] i32
  Tensor emitted;        // [B, max_path] i32
  Tensor num_emitted;    // [B] i32
  Tensor finish_reason;  // [B] i32
  Tensor log_probs;      // [B * max_path, 1] f32: of the emitted tokens
  Tensor top_ids;        // [B * max_path, kMaxLogprobs] i32
  Tensor top_log_probs;  // [B * max_path, kMaxLogprobs] f32
};

class RoundBuffers {
 public:
  RoundBuffers(Backend& backend, const RoundSizes& sizes);

  const RoundSizes& sizes() const { return sizes_; }

  // Places
  Tensor anchors;       // [B] i32; -1: nothing decodes here
  Tensor context_len;   // [B] i32
  Tensor block_tables;  // [B, max_blocks] i32
  Tensor budgets;       // [B] i32
  Tensor min_scores;    // [B] f32

  // Cut
  Tensor cost_ms;      // [num_buckets] f32
  Tensor bucket_rows;  // [num_buckets] i32
  Tensor calibration;  // [max_path] f32

  // Rows of a step
  Tensor token_ids, positions, slots, seq_of_row, node_of_row, kv_len, path_len;  // [T] i32
  Tensor path;  // [T, max_path] i32

  // The rows of a prefill step whose choice is wanted
  Tensor output_rows, output_positions, output_seqs, output_nodes, output_slots;  // [B] i32

  // Commit
  Tensor move_src, move_dst;                              // [B * max_path] i32
  Tensor feature_rows, feature_positions, feature_slots;  // [B * max_path] i32
  Tensor context_features;                                // [B * max_path, feature_size] act

  RoundResults results;       // device
  RoundResults host_results;  // host, valid after download_results
  void download_results();

 private:
  Backend& backend_;
  RoundSizes sizes_;
  Buffer buffer_, results_buffer_, host_buffer_;
};

}  // namespace coppice
