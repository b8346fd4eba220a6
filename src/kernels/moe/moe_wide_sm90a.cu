#include <cuda.h>

#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/moe/moe_wide.cuh"

namespace coppice::kernels {

namespace {

// See MoeWideMaps.
cudaError_t make_map(const void* blob, int num_experts, const ExpertBlobShape& shape,
                     CUtensorMap* map) {
  constexpr cuuint32_t kCellWords = kCellBytes / 8;
  const bool split = shape.warps_k > 1;
  const cuuint64_t size[4] = {kCellWords, kStepCells, static_cast<cuuint64_t>(shape.steps),
                              static_cast<cuuint64_t>(num_experts) * shape.blocks};
  const cuuint64_t stride[3] = {kCellBytes, kStepBytes,
                                static_cast<cuuint64_t>(expert_blob_block_bytes(shape))};
  const cuuint32_t box[4] = {kCellWords, split ? 1u : kStepCells, 1, split ? kStepCells : 1u};
  return encode_tensor_map(map, blob, 4, size, stride, box, CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
                           CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace

cudaError_t moe_experts_wide(const MoeExpertsParams& params, int sm_count, size_t max_shared_bytes,
                             cudaStream_t stream) {
  MoeWideKernelParams p = {.op = params};
  p.config = choose_moe_wide_config(params.num_tokens, params.top_k, params.num_experts, sm_count,
                                    max_shared_bytes);
  if (p.config.stages < 2) return cudaErrorInvalidValue;
  p.shape13 = expert_blob_shape(2 * params.intermediate_size, params.hidden_size);
  p.shape2 = expert_blob_shape(params.hidden_size, params.intermediate_size);
  MoeWideMaps maps;
  cudaError_t error = make_map(params.w13, params.num_experts, p.shape13, &maps.w13);
  if (error == cudaSuccess) error = make_map(params.w2, params.num_experts, p.shape2, &maps.w2);
  if (error != cudaSuccess) return error;

  const MoeWideLayout at = moe_wide_layout(params.num_tokens, params.top_k, params.hidden_size,
                                           params.intermediate_size, p.config.max_units);
  auto* workspace = static_cast<uint8_t*>(params.workspace);
  p.counters = reinterpret_cast<uint32_t*>(workspace + at.counters);
  p.units = reinterpret_cast<MoeWideUnit*>(workspace + at.units);
  p.pairs = reinterpret_cast<int32_t*>(workspace + at.pairs);
  p.positions = reinterpret_cast<int32_t*>(workspace + at.positions);
  p.x = reinterpret_cast<__nv_bfloat16*>(workspace + at.x);
  p.activation = reinterpret_cast<__nv_bfloat16*>(workspace + at.activation);
  p.partial = reinterpret_cast<float*>(workspace + at.partial);
  p.counter_count = static_cast<int>(at.counter_count);

  error = launch_dependent(moe_wide_list_kernel, dim3(static_cast<unsigned>(sm_count)),
                           kWideListThreads, params.num_experts * sizeof(int), stream, p);
  if (error != cudaSuccess) return error;
  return launch_dependent(
      p.config.columns == kWideFewColumns ? moe_wide_kernel<kWideFewColumns> : moe_wide_kernel<64>,
      dim3(static_cast<unsigned>(sm_count)), kWideThreads, p.config.shared_bytes, stream, p, maps);
}

}  // namespace coppice::kernels
