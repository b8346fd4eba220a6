// Wide form of moe_experts for many rows per expert (wgmma): shared by its host and device side.
//
// The same arithmetic as the form for few rows, bit for bit, in another shape: an item of work is
// 256 outputs of one expert for up to kColumns rows. Its workspace is separate from that form's.
#pragma once

#include "kernels/moe/expert_blob.h"
#include "kernels/moe/moe_experts.h"

namespace coppice::kernels {

inline constexpr int kWideOutputs = kStepCells * kCellRows;  // outputs of an item
inline constexpr int kWideBuffers = 3;      // chunks of outputs whose partial sums may be alive
inline constexpr int kWideFewColumns = 32;  // the smallest unit

// Rows [begin, begin + count) of the sorted pairs, all routed to `expert`.
struct MoeWideUnit {
  int32_t begin;
  uint16_t expert, count;
};

// A slot of a token that a block adds up: its sorted position, -1 if it has no expert.
struct MoeWideSlot {
  int32_t position;
  float weight;
};

struct MoeWideConfig {
  int columns = 0;    // most rows of a unit: 32 or 64
  int max_units = 0;  // of any routing of this size
  int stages = 0;     // of the ring
  size_t shared_bytes = 0;
};

// Pure host arithmetic; no choice here can change a result bit. `stages` is under 2 for sizes that
// do not fit.
MoeWideConfig choose_moe_wide_config(int num_tokens, int top_k, int num_experts, int sm_count,
                                     size_t max_shared_bytes);

// Slots that one block adds up: pairs of tokens, dealt out in turn.
constexpr int moe_wide_block_slots(int num_tokens, int top_k, int sm_count) {
  return (num_tokens + 2 * sm_count - 1) / (2 * sm_count) * 2 * top_k;
}

// Whether the wide form is the faster one for these sizes.
bool moe_wide_pays(int num_tokens, int top_k, int num_experts);

constexpr int moe_wide_stage_bytes(int columns) {
  return kStepBytes + columns * kCellInputs * 2;
}

// Offsets into the workspace, in bytes.
struct MoeWideLayout {
  size_t counters, units, pairs, positions, x, activation, partial, total;
  size_t counter_count;
};
MoeWideLayout moe_wide_layout(int num_tokens, int top_k, int hidden_size, int intermediate_size,
                              int max_units);

// Enqueues the list and the experts. Returns cudaErrorInvalidValue for sizes that do not fit.
cudaError_t moe_experts_wide(const MoeExpertsParams& params, int sm_count, size_t max_shared_bytes,
                             cudaStream_t stream);

}  // namespace coppice::kernels
