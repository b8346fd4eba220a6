// The rows of one verify step from the draft trees of a batch: cuts all trees to the bucket (total
// number of rows) with most expected tokens per millisecond, then writes ragged rows, sequence by
// sequence, root first, and inert rows up to num_rows.
//
// Cut: a node is worth exp(score) * calibration[depth]. The trees are merged by the worth of their
// next nodes (ties: lower sequence), best first, until the bucket is full: R rows keep R - (live
// sequences) nodes, of every tree a prefix. The bucket with the largest (live sequences + worth of
// the kept nodes) / cost_ms wins (ties: the first). Sums are integers in units of 2^-18, so they do
// not depend on an order; with several sequences, nodes of the 0.01-nat class that a bucket cuts
// count with the mean of their class. No allowed
// bucket: roots only. Without a cost table only num_rows limits.
#pragma once

#include "kernels/tree/tree_arrays.h"

namespace coppice::kernels {

struct CompileTreeParams {
  TreeArrays trees;                       // counts is lowered to what is kept
  const int32_t* context_len = nullptr;   // [num_seqs] tokens in the cache; the root's position
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks] blocks of 64 slots
  const float* cost_ms = nullptr;         // [num_buckets], or null: one bucket of num_rows
  const int32_t* bucket_rows = nullptr;   // [num_buckets], with cost_ms; above num_rows: unused
  const float* calibration = nullptr;     // [max_path], or null: 1
  int num_buckets = 0;                    // 0 to 32
  int num_seqs = 0;                       // 0 to 512; times max_nodes at most 14,000
  int max_blocks = 0;
  int num_rows = 0;                // T: rows written, at least the number of live sequences
  int max_path = 0;                // at least the depth of any tree + 1; at most 32
  int32_t* token_ids = nullptr;    // [T] out; -1 in inert rows
  int32_t* positions = nullptr;    // [T] out: context_len + depth; 0
  int32_t* slots = nullptr;        // [T] out: cache slot of position context_len + node; -1
  int32_t* seq_of_row = nullptr;   // [T] out; -1
  int32_t* node_of_row = nullptr;  // [T] out; -1
  int32_t* kv_len = nullptr;       // [T] out: context_len; 0
  int32_t* path_len = nullptr;     // [T] out: depth + 1; 0
  int32_t* path = nullptr;         // [T, max_path] out: slots of the ancestors, root first, and of
                                   // the row itself; -1 beyond path_len
  int32_t* row_offsets = nullptr;  // [num_seqs + 1] out
  int32_t* chosen = nullptr;       // [2] out: bucket index (-1 without a table), live rows; or null
  int32_t* ticket = nullptr;       // [1] workspace, zero between calls
};

// Enqueues on `stream`; capturable. Returns cudaErrorInvalidValue outside the limits above.
cudaError_t compile_tree(const CompileTreeParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
