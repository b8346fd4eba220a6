// The DFlash block-diffusion drafter (arXiv 2602.06036): a small GQA network that fills a block
// [anchor, mask x (B-1)] in one bidirectional pass. Its context is K/V projected from hidden states
// of the target (features); it owns no embedding and no lm_head. Slot j of the block predicts the
// token at its own position, anchor + j; slot 0 is unused.
#pragma once

#include <memory>

#include "cache/paged_kv_cache.h"
#include "model/model.h"

namespace coppice {

class DflashModel {
 public:
  virtual ~DflashModel() = default;

  virtual const DflashConfig& config() const = 0;
  virtual KvLayout kv_layout() const = 0;

  // Projects features [C, num_feature_layers * hidden_size] of decided or prompt rows to K/V of
  // every layer and writes them. positions, slots [C] i32; rows with slot -1 are inert.
  virtual void append_context(const Tensor& features, const Tensor& positions, const Tensor& slots,
                              PagedKvCache& cache, Provenance provenance) = 0;

  // One draft pass over B sequences with block_size rows each (row-major by sequence). batch holds,
  // per row: token id (anchor or mask), position anchor + j, a slot for the transient block K/V
  // (position anchor + j of the same block table), and kv_len = anchor position + block_size for
  // every row of the block, path_len 0. logits [B * (block_size - 1), vocab_size] f32, the rows of
  // slots 1..block_size-1 in order.
  virtual void draft(const ForwardBatch& batch, PagedKvCache& cache, const Tensor& logits) = 0;
};

}  // namespace coppice
