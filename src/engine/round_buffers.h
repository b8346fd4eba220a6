// Device memory of prefill steps and decode rounds, at fixed addresses for the engine's life, the
// one block that goes out before a round and the one packed block that comes back after each.
#pragma once

#include <array>
#include <vector>

#include "backend/backend.h"

namespace coppice {

struct RoundSizes {
  std::int64_t max_num_seqs = 0;     // B
  std::int64_t max_rows = 0;         // T: rows of the largest step
  std::int64_t max_verify_rows = 0;  // of the largest decode step
  std::int64_t max_nodes = 0;        // of one tree, without its root
  std::int64_t max_path = 0;         // nodes of one path, root included
  std::int64_t max_blocks = 0;       // of one sequence's block table
  std::int64_t num_buckets = 0;      // of the cost table
  std::int64_t max_outputs = 0;      // rows of a prefill step whose logits are wanted
  std::int64_t feature_size = 0;     // columns of the drafter's features; 0: none
};

// What the host reads after a step. The same tensors exist on the device and, at the same offsets,
// on the host.
struct RoundResults {
  Tensor times;  // [kNumVerbs + 1] i64: device nanoseconds before each verb and after the last
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

  // The rows of a prefill step whose choice or logits are wanted
  Tensor output_rows, output_positions, output_seqs, output_nodes, output_slots;  // [max_outputs]

  // Commit
  Tensor move_src, move_dst;                              // [B * max_path] i32
  Tensor feature_rows, feature_positions, feature_slots;  // [B * max_path] i32
  Tensor context_features;                                // [B * max_path, feature_size] act

  // What the host changes from round to round, sent in one copy, and only if something changed.
  struct Control {
    std::vector<std::int32_t> budgets;        // [batch]
    std::vector<float> min_scores;            // [batch]
    std::vector<float> cost_ms, calibration;  // [num_buckets], [max_path]; empty: the last ones
  };
  void send(const Control& control);

  RoundResults results;  // device

  // Steps whose results are on their way or were not read yet: each has a packed block of its own
  // on the host.
  static constexpr std::int64_t kMaxSteps = 4;
  // Enqueues the copy that packs up a step; log-probabilities only if somebody wants them.
  std::int64_t start_results(bool log_probs);
  // Waits for the copy of that step. Until kMaxSteps - 1 further ones have started.
  const RoundResults& finish_results(std::int64_t step);

 private:
  Backend& backend_;
  RoundSizes sizes_;
  Buffer buffer_, control_buffer_, results_buffer_;
  Buffer host_control_;
  bool control_is_sent_ = false;
  struct HostStep {
    Buffer buffer;
    RoundResults results;
    std::int64_t ticket = 0;
  };
  HostStep& step_of(std::int64_t number) {
    return host_steps_[static_cast<std::size_t>(number % kMaxSteps)];
  }
  void* on_host(const Tensor& control) const;

  std::array<HostStep, kMaxSteps> host_steps_;
  std::int64_t num_steps_ = 0;
  std::size_t short_bytes_ = 0;  // of results without log-probabilities
};

}  // namespace coppice
