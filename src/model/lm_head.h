// The projection of normed rows to logits, split over ranks by vocabulary. All logits are gathered
// on every rank: what follows (top-k, log-sum-exp, filters, masks, ties to the lowest id) then is
// what one rank computes, bit for bit.
#pragma once

#include "backend/backend.h"
#include "model/model_options.h"

namespace coppice {

class LmHead {
 public:
  // weight [vocab_size / num_ranks, hidden_size]. `backend` must outlive it.
  LmHead(Backend& backend, LinearWeight weight, const ModelOptions& options);

  // hidden [n, hidden_size] act -> logits [n, vocab_size] f32.
  void compute(const Tensor& hidden, const Tensor& logits);

 private:
  Backend& backend_;
  LinearWeight weight_;
  Buffer part_buffer_;
  Tensor part_;  // [max_rows, vocab_size / num_ranks] f32; empty: one rank
};

}  // namespace coppice
