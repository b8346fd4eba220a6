// Small kernels around a draft: the rows of a draft block, prompt lookup, and the log-probability
// of a choice. Each function enqueues on `stream` and returns the launch's status; capturable.
#pragma once

#include "kernels/tree/tree_arrays.h"

namespace coppice::kernels {

// Rows [anchor, mask x (block_size - 1)] of every sequence; a negative anchor gives padded rows.
struct CompileDraftParams {
  const int32_t* anchors = nullptr;       // [num_seqs]
  const int32_t* context_len = nullptr;   // [num_seqs]
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks] blocks of 64 slots
  int32_t* token_ids = nullptr;           // [num_seqs * block_size] out, and so are the following
  int32_t* positions = nullptr;
  int32_t* slots = nullptr;
  int32_t* seq_of_row = nullptr;
  int32_t* kv_len = nullptr;    // context_len + block_size
  int32_t* path_len = nullptr;  // 0
  int num_seqs = 0;
  int block_size = 0;
  int max_blocks = 0;
  int32_t mask_token_id = 0;
};
cudaError_t compile_draft(const CompileDraftParams& params, cudaStream_t stream);

// The longest suffix of the history (max_ngram down to min_ngram tokens) that occurred earlier
// proposes what followed its most recent occurrence, as a chain of at most budgets[b] nodes.
struct NgramProposeParams {
  const int32_t* history = nullptr;      // [num_seqs, history_stride], the anchor last
  const int32_t* history_len = nullptr;  // [num_seqs]
  const int32_t* anchors = nullptr;      // [num_seqs]; negative: an empty batch place
  const int32_t* budgets = nullptr;      // [num_seqs]
  TreeArrays trees;
  int num_seqs = 0;
  int history_stride = 0;
  int min_ngram = 2;
  int max_ngram = 4;
};
cudaError_t ngram_propose(const NgramProposeParams& params, cudaStream_t stream);

// log_softmax of the raw logits at the row's choice; 0 where the choice is negative.
struct ChoiceLogProbsParams {
  const float* logits = nullptr;     // [num_rows, vocab_size]
  const int32_t* choices = nullptr;  // [num_rows]
  float* log_probs = nullptr;        // [num_rows] out
  int64_t row_stride = 0;
  int num_rows = 0;
  int vocab_size = 0;
};
cudaError_t choice_log_probs(const ChoiceLogProbsParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
