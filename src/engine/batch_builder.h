// From sequences to device buffers: places when they change, block tables when they grow, and the
// rows of a prefill step.
#pragma once

#include <span>

#include "engine/round_buffers.h"
#include "engine/scheduler.h"
#include "model/forward_batch.h"
#include "sampling/sampling_state.h"

namespace coppice {

class BatchBuilder {
 public:
  BatchBuilder(Backend& backend, RoundBuffers& buffers, SamplingState& sampling)
      : backend_(backend), buffers_(buffers), sampling_(sampling) {}

  // Makes the device's place equal to the sequence: everything if its place is new, else the block
  // table. The caller notes that it is done.
  void sync_place(const Sequence& sequence);
  // Nothing decodes at a place.
  void clear_place(std::int64_t place);
  // The sequence decodes from its last token on, after a prefill that sampled nothing.
  void start_decoding(const Sequence& sequence);

  struct PrefillRows {
    ForwardBatch batch;
    std::int64_t num_outputs = 0;             // rows that sample
    std::vector<std::int32_t> scored_tokens;  // behind them: rows scored, the token each one scores
  };
  // Writes the rows of all chunks. Those that sample become outputs, by place, then the scored
  // ones, chunk by chunk. The sampling places are ready for accept_path with a tree of the root
  // alone, all other places of `num_places` are empty.
  PrefillRows build_prefill(std::span<const PrefillChunk> chunks, Provenance provenance,
                            std::int64_t num_places);

 private:
  void upload_int(const Tensor& tensor, std::int64_t i, std::int64_t value);
  void upload_blocks(const Sequence& sequence);

  Backend& backend_;
  RoundBuffers& buffers_;
  SamplingState& sampling_;
};

}  // namespace coppice
