#include "kernels/common/launch.h"
#include "kernels/moe/moe_route.cuh"

namespace coppice::kernels {

cudaError_t moe_route(const MoeRouteParams& params, cudaStream_t stream) {
  if (params.num_experts > kMoeRouteMaxExperts || params.top_k > params.num_experts ||
      params.top_k > 32 || params.top_k < 1) {
    return cudaErrorInvalidValue;
  }
  if (params.num_tokens == 0) return cudaSuccess;
  const dim3 grid((params.num_tokens + kRouteWarps - 1) / kRouteWarps);
  const auto kernel = params.num_experts <= 32    ? moe_route_kernel<1>
                      : params.num_experts <= 384 ? moe_route_kernel<12>
                                                  : moe_route_kernel<16>;
  return launch_dependent(kernel, grid, 32 * kRouteWarps, 0, stream, params);
}

}  // namespace coppice::kernels
