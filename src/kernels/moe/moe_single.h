// Form of moe_experts for one row whose weights fit in shared memory all at once: shared by its
// host and device side. The same arithmetic as the other forms, bit for bit.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/moe/expert_blob.h"
#include "kernels/moe/moe_experts.h"

namespace coppice::kernels {

inline constexpr int kSingleMaxSlots = kStepCells;  // one multiplying warp for each
inline constexpr int kSingleMaxTiles = 2;           // 32-row tiles of down in a block

// Shared memory of a block: one block of gate and up, `tiles` tiles of down of every slot, x, the
// activations of every slot. Zero bytes for shapes that this form does not take.
struct MoeSingleConfig {
  int tiles = 0;
  size_t shared_bytes = 0;
};
MoeSingleConfig choose_moe_single_config(const MoeExpertsParams& params, int sm_count,
                                         size_t max_shared_bytes);

// Two counters, then the activations as words of two bf16 and a tag. Zero before the first call;
// calls leave old tags behind.
inline constexpr int kSingleMaxWords = 2048;
inline constexpr size_t kSingleCounterBytes = 16 + kSingleMaxWords * sizeof(uint64_t);

// Enqueues the one row. `counters` has kSingleCounterBytes, 16-byte aligned.
cudaError_t moe_experts_single(const MoeExpertsParams& params, const MoeSingleConfig& config,
                               void* counters, int sm_count, cudaStream_t stream);

}  // namespace coppice::kernels
