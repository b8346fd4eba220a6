#include "kernels/common/launch.h"
#include "kernels/moe/moe_single.cuh"

namespace coppice::kernels {

MoeSingleConfig choose_moe_single_config(const MoeExpertsParams& params, int sm_count,
                                         size_t max_shared_bytes) {
  const ExpertBlobShape shape13 =
      expert_blob_shape(2 * params.intermediate_size, params.hidden_size);
  const ExpertBlobShape shape2 = expert_blob_shape(params.hidden_size, params.intermediate_size);
  const int tiles_total = params.hidden_size / kCellRows;
  const int tiles = (tiles_total + sm_count - 1) / sm_count;
  // No padded cells, inputs of gate and up shared by eight warps, those of down by none.
  const bool fits = params.num_tokens == 1 && params.top_k <= kSingleMaxSlots &&
                    shape13.warps_k == kStepCells && shape2.warps_k == 1 &&
                    shape13.steps <= kSingleMaxSteps &&
                    shape13.steps * kStepCells * kCellInputs == params.hidden_size &&
                    shape2.steps * kCellInputs == params.intermediate_size &&
                    params.top_k * shape13.blocks <= sm_count && tiles <= kSingleMaxTiles &&
                    params.top_k * params.intermediate_size / 2 <= kSingleMaxWords;
  if (!fits) return {};
  const size_t bytes =
      size_t(shape13.steps) * kStepBytes +
      size_t(tiles) * params.top_k * shape2.steps * kCellBytes + size_t(params.hidden_size) * 2 +
      size_t(params.top_k) * params.intermediate_size * 2 +
      size_t(tiles) * kSingleWarps * kCellRows * sizeof(float) + kSingleMaxSteps * sizeof(uint64_t);
  if (bytes > max_shared_bytes) return {};
  return {tiles, bytes};
}

cudaError_t moe_experts_single(const MoeExpertsParams& params, const MoeSingleConfig& config,
                               void* counters, int sm_count, cudaStream_t stream) {
  MoeSingleKernelParams p = {.op = params};
  p.shape13 = expert_blob_shape(2 * params.intermediate_size, params.hidden_size);
  p.shape2 = expert_blob_shape(params.hidden_size, params.intermediate_size);
  p.expert_bytes13 = expert_blob_bytes(p.shape13);
  p.expert_bytes2 = expert_blob_bytes(p.shape2);
  p.tag = static_cast<uint32_t*>(counters);
  p.finished = p.tag + 1;
  p.activation = reinterpret_cast<uint64_t*>(static_cast<uint8_t*>(counters) + 16);
  p.config = config;
  return launch_dependent(moe_single_kernel, dim3(static_cast<unsigned>(sm_count)), kSingleThreads,
                          config.shared_bytes, stream, p);
}

}  // namespace coppice::kernels
