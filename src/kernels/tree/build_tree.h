// Best-first draft trees from per-depth log-probabilities (DDTree, arXiv 2604.12989): a node's
// score is the sum of the log-probabilities on its path; the best candidate is taken, then its next
// sibling (score - lp[d][r] + lp[d][r+1]) and its first child (score + lp[d+1][0]) become
// candidates. fp32 additions in that order; equal scores go to the smaller rank tuple
// (lexicographic, shorter first), so trees equal the reference implementation's bit for bit.
#pragma once

#include "kernels/tree/tree_arrays.h"

namespace coppice::kernels {

struct BuildTreeParams {
  const int32_t* ids = nullptr;           // [num_seqs, depth, k]; row d-1 proposes for depth d
  const float* log_probs = nullptr;       // [num_seqs, depth, k], descending along k; above 0: 0
  const int32_t* anchors = nullptr;       // [num_seqs] root tokens; negative: empty batch place
  const int32_t* budgets = nullptr;       // [num_seqs] nodes without the root; clamped to max_nodes
  const int32_t* depth_limits = nullptr;  // [num_seqs], or null: depth
  const float* min_scores = nullptr;      // [num_seqs] growth stops at a lower score; or null
  int num_seqs = 0;
  int depth = 0;     // 1 to 16
  int k = 0;         // 1 to 64
  TreeArrays trees;  // out, max_nodes 1 to 512; entries beyond counts[b] are left as they are
};

// Candidates whose score is not above -inf (NaN included) are never taken. Enqueues on `stream`;
// capturable. Returns cudaErrorInvalidValue outside the limits above.
cudaError_t build_tree(const BuildTreeParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
