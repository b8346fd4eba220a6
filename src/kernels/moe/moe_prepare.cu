#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/gemm/skinny_gemm_config.h"
#include "kernels/moe/moe_prepare.cuh"

namespace coppice::kernels {

namespace {

constexpr int kMaxTokens = 64;  // docs/results/moe-h200.md

bool valid_shared(int hidden_size, int intermediate_size) {
  return hidden_size % kSharedOutputs == 0 && intermediate_size % 64 == 0 &&
         intermediate_size <= kMoeSharedMaxSize;
}

}  // namespace

bool moe_prepare_pays(int num_tokens, int hidden_size, int intermediate_size) {
  return num_tokens > 0 && num_tokens <= kMaxTokens &&
         valid_shared(hidden_size, intermediate_size) &&
         skinny_gemm_segments(1, hidden_size, intermediate_size) == 1;
}

cudaError_t moe_prepare(const MoeRouteParams& route, const MoeSharedParams& shared,
                        cudaStream_t stream) {
  if (!valid_route(route) || !valid_shared(shared.hidden_size, shared.intermediate_size)) {
    return cudaErrorInvalidValue;
  }
  if (route.num_tokens == 0) return cudaSuccess;
  const int chunks = (route.num_tokens + kSharedTokens - 1) / kSharedTokens;
  const int tokens = std::min((route.num_tokens + 7) / 8 * 8, kSharedTokens);
  const int blocks = route.num_tokens + shared.hidden_size / kSharedOutputs * chunks;
  const size_t bytes =
      std::max(size_t(kSharedOutputs + tokens) * shared_row_bytes(shared.intermediate_size),
               sizeof(RouteShared));
  const auto kernel = route.num_experts <= kRouteThreads       ? moe_prepare_kernel<1>
                      : route.num_experts <= 3 * kRouteThreads ? moe_prepare_kernel<3>
                                                               : moe_prepare_kernel<4>;
  const MoePrepareKernelParams p = {route, shared};
  return launch_dependent(kernel, dim3(static_cast<unsigned>(blocks)), kRouteThreads, bytes, stream,
                          p);
}

}  // namespace coppice::kernels
