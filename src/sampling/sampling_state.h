// The device's SamplingBuffers for all places of a batch, and their upload from the host.
#pragma once

#include <span>

#include "backend/backend.h"
#include "sampling/sampling_params.h"
#include "tensor/arena.h"

namespace coppice {

// Owns device memory at fixed addresses. Used by the thread that enqueues.
class SamplingState {
 public:
  SamplingState(Backend& backend, std::int64_t max_num_seqs, std::int64_t max_len);

  // Buffers of the first `batch` places.
  SamplingBuffers view(std::int64_t batch) const;

  // Makes a place the request's: all parameters, and history = prompt and output so far.
  void set(std::int64_t place, const SamplingParams& params, std::int64_t seed,
           std::span<const std::int64_t> stop_ids, std::span<const std::int32_t> history,
           std::int64_t prompt_len);

 private:
  Backend& backend_;
  Arena arena_;
  SamplingBuffers all_;
};

// True when a place needs only the arg max of its logits.
bool is_plain_greedy(const SamplingParams& params);

}  // namespace coppice
