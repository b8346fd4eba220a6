#include "kernels/comm/peer_norm.h"

#include "kernels/comm/peer_tagged.cuh"
#include "kernels/common/launch.h"
#include "kernels/norm/rms_norm.cuh"
#include "kernels/norm/rms_norm_config.h"

namespace coppice::kernels {
namespace {

// A block per row, or for several rows; all blocks count the call.
template <int kVectors, int kMost>
__global__ void __launch_bounds__(1024)
    peer_norm_kernel(const __grid_constant__ PeerGroup group, const RmsNormParams p) {
  __shared__ float warp_sums[32];
  const int vectors = p.hidden_size / 8;
  float weight[kVectors][8];
  load_weights(p, weight);
  grid_dependency_launch();
  grid_dependency_wait();
  const std::uint32_t call = next(group.calls[blockIdx.x]);
  const std::uint32_t meetings = group.meetings[blockIdx.x];  // none more
  const auto part_of_row = [&](int row, int v) {
    const __nv_bfloat16* delta = static_cast<const __nv_bfloat16*>(p.delta);
    return *reinterpret_cast<const uint4*>(delta + row * p.delta_row_stride + v * 8);
  };
  for (int row = blockIdx.x; row < p.num_rows; row += gridDim.x)
    for (int v = threadIdx.x; v < vectors; v += blockDim.x) {
      const std::int64_t i = 2 * (static_cast<std::int64_t>(row) * vectors + v);
      const uint4 part = part_of_row(row, v);
      show_tagged(group, call, i, {part.x, part.y});
      show_tagged(group, call, i + 1, {part.z, part.w});
    }
  for (int row = blockIdx.x; row < p.num_rows; row += gridDim.x) {
    const __nv_bfloat16* x = static_cast<const __nv_bfloat16*>(p.x) + row * p.x_row_stride;
    __nv_bfloat16* residual = static_cast<__nv_bfloat16*>(p.residual) + row * p.residual_row_stride;
    norm_row(p, row, weight, warp_sums, [&](int v) {
      const std::int64_t i = 2 * (static_cast<std::int64_t>(row) * vectors + v);
      const uint4 part = part_of_row(row, v);
      const uint2 low = sum_tagged<kMost>(group, call, i, {part.x, part.y});
      const uint2 high = sum_tagged<kMost>(group, call, i + 1, {part.z, part.w});
      const uint4 sum = {low.x, low.y, high.x, high.y};
      const Bf16x8 value = add_bf16x8(load_bf16x8(x + v * 8), reinterpret_cast<const Bf16x8&>(sum));
      store_bf16x8(residual + v * 8, value);
      return value;
    });
    __syncthreads();  // the next row's sums go to the same place
  }
  end_calls(group, call, meetings);
}

template <int kVectors>
auto kernel_for(int num_ranks) {
  return num_ranks <= 2   ? peer_norm_kernel<kVectors, 2>
         : num_ranks <= 4 ? peer_norm_kernel<kVectors, 4>
                          : peer_norm_kernel<kVectors, kMaxPeers>;
}

}  // namespace

cudaError_t peer_norm(const PeerGroup& group, const RmsNormParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  if (!peer_norm_fits(group.num_ranks, p.num_rows, p.hidden_size)) return cudaErrorInvalidValue;
  const int threads = rms_norm_threads(p.hidden_size);
  const auto kernel = p.hidden_size <= 8 * threads ? kernel_for<1>(group.num_ranks)
                                                   : kernel_for<2>(group.num_ranks);
  return launch_dependent(kernel, dim3(kPeerBlocks), threads, 0, stream, group, p);
}

}  // namespace coppice::kernels
