// One sampled token per row. Order: repetition, frequency and presence penalties, logit bias, bans
// (allowed mask; stop ids before min_tokens), temperature, top-k, top-p, min-p; then the surviving
// id with the largest scaled logit + Gumbel noise (lowest id on ties). The noise of an id follows
// from (seed; id, position of the drawn token, choice index) alone.
//
// - Penalties count the tokens of history and the nodes on the row's path below the root.
// - top-k keeps exactly k ids, ties by lowest id. top-p keeps an id when the probabilities before
// it,
//   in that order, sum to less than top_p of what top-k left. Probabilities are integers in units
//   of 2^-40 of the largest, so sums do not depend on an order; min-p compares with min_p times the
//   largest.
// - temperature 0 takes the largest logit after penalties, bias and bans, without filters.
#pragma once

#include "kernels/tree/tree_arrays.h"

#include <cstddef>

namespace coppice::kernels {

struct SampleRowsParams {
  const float* logits = nullptr;         // [num_rows, vocab_size], rows 16-byte aligned
  int64_t row_stride = 0;                // elements between rows, a multiple of 4
  const int32_t* positions = nullptr;    // [num_rows]: of the row's token; the draw's is one more
  const int32_t* seq_of_row = nullptr;   // [num_rows]; -1: choice -1, finite 1
  const int32_t* node_of_row = nullptr;  // [num_rows]
  const uint32_t* allowed = nullptr;     // [num_rows, ceil(vocab_size / 32)] bit mask, or null
  TreeArrays trees;
  const float* temperature = nullptr;         // [num_seqs]
  const int32_t* top_k = nullptr;             // [num_seqs]; below 1: all
  const float* top_p = nullptr;               // [num_seqs]; 1: all
  const float* min_p = nullptr;               // [num_seqs]; 0: all
  const float* repetition_penalty = nullptr;  // [num_seqs]; 1: none
  const float* presence_penalty = nullptr;    // [num_seqs]
  const float* frequency_penalty = nullptr;   // [num_seqs]
  const int64_t* seed = nullptr;              // [num_seqs]
  const int32_t* choice_index = nullptr;      // [num_seqs]
  const int32_t* prompt_len = nullptr;        // [num_seqs]
  const int32_t* history = nullptr;           // [num_seqs, history_stride]
  const int32_t* history_len = nullptr;       // [num_seqs]
  const int32_t* bias_ids = nullptr;          // [num_seqs, max_bias]; -1: unused
  const float* bias_values = nullptr;         // [num_seqs, max_bias]
  const int32_t* stop_ids = nullptr;          // [num_seqs, max_stop_ids]; -1: unused
  const int32_t* min_tokens = nullptr;        // [num_seqs]
  int history_stride = 0;
  int max_bias = 0;
  int max_stop_ids = 0;
  int num_seqs = 0;
  int num_rows = 0;
  int vocab_size = 0;          // a multiple of 4, at most 2^18
  int32_t* choices = nullptr;  // [num_rows] out
  int32_t* finite = nullptr;   // [num_rows] out: 0 if the row's logits hold NaN or infinity, or
                               // all ids are banned; the choice is -1 then
  uint32_t* token_counts = nullptr;  // workspace [num_seqs, vocab_size], zero between calls
};

// Enqueues on `stream`; capturable. Returns cudaErrorInvalidValue outside the limits above.
cudaError_t sample_rows(const SampleRowsParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
