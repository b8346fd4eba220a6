// Follows the target's choices down each draft tree and settles the sequences: truncates at a stop
// id, max_tokens or a non-finite row, advances anchor, context length and history, and lists the
// rows whose tokens are now decided.
//
// With a_0 = 0 (root) .. a_m the accepted path and c_i the choice at a_i, tokens c_0 .. c_m are
// emitted (c_m is the new anchor) and rows a_0 .. a_m stay in the cache, at positions context_len
// .. context_len + m. A cut after e tokens keeps e rows.
#pragma once

#include "kernels/tree/tree_arrays.h"

namespace coppice::kernels {

enum AcceptFinish : int32_t {
  kAcceptNone = 0,
  kAcceptStop = 1,
  kAcceptLength = 2,
  kAcceptNotFinite = 3
};

struct AcceptPathParams {
  TreeArrays trees;                       // not written
  const int32_t* row_offsets = nullptr;   // [num_seqs + 1]: a tree's kept prefix follows from it
  const int32_t* choices = nullptr;       // [T]
  const int32_t* finite = nullptr;        // [T]: 0 for a row with NaN or infinity
  const int32_t* slots = nullptr;         // [T]
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks] blocks of 64 slots
  const int32_t* prompt_len = nullptr;    // [num_seqs]: where the output starts in history
  const int32_t* max_tokens = nullptr;    // [num_seqs]
  const int32_t* stop_ids = nullptr;      // [num_seqs, max_stop_ids]; -1: unused
  int32_t* history = nullptr;             // [num_seqs, history_stride], appended; or null
  int32_t* history_len = nullptr;         // [num_seqs], advanced
  int32_t* context_len = nullptr;         // [num_seqs], advanced by the emitted count
  int32_t* anchors = nullptr;             // [num_seqs]: the last emitted token; -1 once finished
  int32_t* accepted_rows = nullptr;       // [num_seqs, max_path] out; -1 beyond num_emitted
  int32_t* emitted = nullptr;             // [num_seqs, max_path] out; -1 beyond num_emitted
  int32_t* num_emitted = nullptr;         // [num_seqs] out; 0 for empty batch places
  int32_t* finish_reason = nullptr;       // [num_seqs] out: AcceptFinish
  int32_t* move_src = nullptr;            // [num_seqs, max_path] out; -1 where nothing moves
  int32_t* move_dst = nullptr;            // [num_seqs, max_path] out
  int32_t* feature_rows = nullptr;        // [num_seqs, max_path] out: accepted_rows again
  int32_t* feature_positions = nullptr;   // [num_seqs, max_path] out; 0 where there is no row
  int32_t* feature_slots = nullptr;       // [num_seqs, max_path] out; -1 where there is no row
  int num_seqs = 0;
  int max_path = 0;  // at least the depth of any tree + 1; at most 32
  int max_blocks = 0;
  int max_stop_ids = 0;
  int history_stride = 0;
};

// Enqueues on `stream`; capturable. Returns cudaErrorInvalidValue outside the limits above.
cudaError_t accept_path(const AcceptPathParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
