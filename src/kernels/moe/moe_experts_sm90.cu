#include <algorithm>
#include <type_traits>

#include "kernels/common/launch.h"
#include "kernels/moe/moe_combine.cuh"
#include "kernels/moe/moe_experts.cuh"
#include "kernels/moe/moe_single.h"
#include "kernels/moe/moe_wide.h"

namespace coppice::kernels {

namespace {

constexpr size_t kAlign = 128;
size_t align_up(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

struct Device {
  int sm_count = 0;
  int max_shared_bytes = 0;  // of a block
  int sm_shared_bytes = 0;
  int major = 0;  // compute capability
};

cudaError_t current_device(Device* device) {
  int id = 0;
  cudaError_t error = cudaGetDevice(&id);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->sm_count, cudaDevAttrMultiProcessorCount, id);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->max_shared_bytes,
                                   cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->sm_shared_bytes,
                                   cudaDevAttrMaxSharedMemoryPerMultiprocessor, id);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->major, cudaDevAttrComputeCapabilityMajor, id);
  }
  return error;
}

ExpertGemm expert_gemm(const void* blob, int rows, int inputs) {
  const ExpertBlobShape shape = expert_blob_shape(rows, inputs);
  return {static_cast<const uint8_t*>(blob), shape, expert_blob_bytes(shape),
          expert_blob_block_bytes(shape)};
}

using ExpertsKernel = void (*)(MoeExpertsKernelParams);

ExpertsKernel pick_kernel(const MoeExpertsConfig& config) {
  if (config.tiles == 1 && config.blocks_per_sm == 1) return moe_experts_kernel<1, 1, 1>;
  if (config.tiles == 1) return moe_experts_kernel<1, 1, 2>;
  if (config.tiles == 2) return moe_experts_kernel<2, 1, 2>;
  if (config.columns == 2) return moe_experts_kernel<4, 2, 1>;
  return moe_experts_kernel<4, 3, 1>;
}

bool valid(const MoeExpertsParams& p) {
  return p.num_tokens >= 0 && p.num_tokens <= kMoeExpertsMaxTokens && p.top_k > 0 &&
         p.top_k <= kMoeExpertsMaxTopK && p.num_experts > 0 && p.num_experts <= 4096 &&
         p.hidden_size > 0 && p.hidden_size % 32 == 0 && p.intermediate_size > 0 &&
         p.intermediate_size % 32 == 0;
}

// The most rows that may take the narrow form.
int most_narrow_tokens(int max_tokens) {
  return std::min(max_tokens, kMoeNarrowMaxTokens);
}

bool takes_wide_form(int num_tokens, int top_k, int num_experts) {
  return num_tokens > kMoeNarrowMaxTokens || moe_wide_pays(num_tokens, top_k, num_experts);
}

size_t narrow_counter_bytes(int top_k, int num_experts) {
  const int most = most_narrow_tokens(kMoeExpertsMaxTokens);
  return align_up(sizeof(uint32_t) * (1 + moe_max_units(most * top_k, num_experts, 1)));
}

}  // namespace

size_t moe_experts_counter_bytes(int top_k, int num_experts) {
  return narrow_counter_bytes(top_k, num_experts) + align_up(kSingleCounterBytes);
}

size_t moe_experts_workspace_bytes(int max_tokens, int top_k, int num_experts, int hidden_size,
                                   int intermediate_size) {
  const size_t pairs =
      static_cast<size_t>(most_narrow_tokens(max_tokens)) * static_cast<size_t>(top_k);
  const size_t narrow = align_up(pairs * intermediate_size * sizeof(__nv_bfloat16)) +
                        align_up(pairs * hidden_size * sizeof(float));
  const int max_units = moe_max_units(max_tokens * top_k, num_experts, kWideFewColumns);
  const MoeWideLayout wide =
      moe_wide_layout(max_tokens, top_k, hidden_size, intermediate_size, max_units);
  return moe_experts_counter_bytes(top_k, num_experts) + std::max(narrow, wide.total);
}

cudaError_t moe_experts(const MoeExpertsParams& params, cudaStream_t stream) {
  if (!valid(params)) return cudaErrorInvalidValue;
  if (params.num_tokens == 0) return cudaSuccess;
  Device device;
  if (cudaError_t error = current_device(&device); error != cudaSuccess) return error;
  if (device.major == 9 && takes_wide_form(params.num_tokens, params.top_k, params.num_experts)) {
    MoeExpertsParams wide = params;
    wide.workspace = static_cast<uint8_t*>(params.workspace) +
                     moe_experts_counter_bytes(params.top_k, params.num_experts);
    return moe_experts_wide(wide, device.sm_count, device.max_shared_bytes, stream);
  }
  const MoeSingleConfig single =
      choose_moe_single_config(params, device.sm_count, device.max_shared_bytes);
  if (single.shared_bytes > 0) {
    void* counters = static_cast<uint8_t*>(params.workspace) +
                     narrow_counter_bytes(params.top_k, params.num_experts);
    return moe_experts_single(params, single, counters, device.sm_count, stream);
  }
  if (params.num_tokens > kMoeNarrowMaxTokens) return cudaErrorInvalidValue;
  const ExpertGemm w13 = expert_gemm(params.w13, 2 * params.intermediate_size, params.hidden_size);
  const bool one_wave =
      params.num_tokens == 1 && params.top_k * w13.shape.blocks <= device.sm_count;
  const MoeExpertsConfig config =
      choose_moe_experts_config(params.num_tokens, params.top_k, params.num_experts, one_wave,
                                device.max_shared_bytes, device.sm_shared_bytes);
  const ExpertsKernel kernel = pick_kernel(config);
  if (!kernel || config.stages < 2) return cudaErrorInvalidValue;

  const size_t pairs = static_cast<size_t>(params.num_tokens) * params.top_k;
  auto* workspace = static_cast<uint8_t*>(params.workspace);
  MoeExpertsKernelParams p = {.op = params};
  p.w13 = w13;
  p.w2 = expert_gemm(params.w2, params.hidden_size, params.intermediate_size);
  p.next_claim = reinterpret_cast<uint32_t*>(workspace);
  p.unit_counters = p.next_claim + 1;
  workspace += moe_experts_counter_bytes(params.top_k, params.num_experts);
  p.activation = reinterpret_cast<__nv_bfloat16*>(workspace);
  workspace += align_up(pairs * params.intermediate_size * sizeof(__nv_bfloat16));
  p.partial = reinterpret_cast<float*>(workspace);
  p.config = config;

  cudaError_t error = launch_dependent(kernel, dim3(device.sm_count * config.blocks_per_sm),
                                       kMoeThreads, config.shared_bytes, stream, p);
  if (error != cudaSuccess) return error;
  const dim3 grid((params.hidden_size / 4 + kCombineThreads - 1) / kCombineThreads,
                  params.num_tokens);
  const ExpertsKernel combine = params.top_k <= 4   ? moe_combine_kernel<4>
                                : params.top_k <= 8 ? moe_combine_kernel<8>
                                                    : moe_combine_kernel<kMoeExpertsMaxTopK>;
  return launch_dependent(combine, grid, kCombineThreads, 0, stream, p);
}

}  // namespace coppice::kernels
