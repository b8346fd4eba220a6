// What proposes the draft trees of a round. Two of the round's five verbs: draft, tree build.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "model/dflash_model.h"

namespace coppice {

// The first B places of the batch; device memory at fixed addresses.
struct DraftBatch {
  Tensor anchors;            // [B] i32; -1: no sequence
  Tensor context_len;        // [B] i32
  Tensor block_tables;       // [B, max_blocks] i32
  Tensor budgets;            // [B] i32: nodes without the root
  Tensor min_scores;         // [B] f32
  SamplingBuffers sampling;  // for the history
  TreeBuffers trees;         // out
};

// Only enqueues. A new drafter needs draft and build_tree; nothing else of the engine changes.
class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual const char* name() const = 0;
  // Deepest node it can propose.
  virtual std::int64_t max_depth() const = 0;
  // Cache positions from the anchor on that a draft pass writes.
  virtual std::int64_t lookahead() const { return 0; }

  virtual void draft(const DraftBatch& batch) = 0;
  virtual void build_tree(const DraftBatch& batch) = 0;
};

// Roots only: plain decoding. Every budget must be 0.
std::unique_ptr<Drafter> make_no_drafter(Backend& backend, std::int64_t max_num_seqs);

// Prompt lookup: chains of at most max_depth tokens.
std::unique_ptr<Drafter> make_ngram_drafter(Backend& backend, std::int64_t min_ngram,
                                            std::int64_t max_ngram, std::int64_t max_depth);

// Best-first trees over the block-diffusion drafter's candidates, top_k for each depth; top_k 1 is
// the chain. `cache` is the drafter's own, under the target's block ids.
std::unique_ptr<Drafter> make_dflash_drafter(Backend& backend, DflashModel& model,
                                             PagedKvCache& cache, std::int64_t vocab_size,
                                             std::int64_t max_num_seqs, std::int64_t top_k);

}  // namespace coppice
