#include "kernels/common/launch.h"
#include "kernels/moe/moe_route.cuh"

namespace coppice::kernels {

cudaError_t moe_route(const MoeRouteParams& params, cudaStream_t stream) {
  if (!valid_route(params)) return cudaErrorInvalidValue;
  if (params.num_tokens == 0) return cudaSuccess;
  const auto kernel = params.num_experts <= kRouteThreads       ? moe_route_kernel<1>
                      : params.num_experts <= 3 * kRouteThreads ? moe_route_kernel<3>
                                                                : moe_route_kernel<4>;
  return launch_dependent(kernel, dim3(static_cast<unsigned>(params.num_tokens)), kRouteThreads, 0,
                          stream, params);
}

}  // namespace coppice::kernels
