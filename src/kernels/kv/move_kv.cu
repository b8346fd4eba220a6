#include "kernels/common/launch.h"
#include "kernels/kv/move_kv.cuh"

namespace coppice::kernels {

cudaError_t move_kv(const MoveKvParams& params, cudaStream_t stream) {
  const bool legal = params.num_planes >= 0 && params.num_planes <= kMoveKvMaxPlanes &&
                     params.row_bytes > 0 && params.row_bytes % 16 == 0 && params.num_pairs >= 0 &&
                     params.num_pairs <= kMoveKvMaxPairs;
  if (!legal) return cudaErrorInvalidValue;
  if (params.num_pairs == 0 || params.num_planes == 0) return cudaSuccess;
  const MoveKvConfig config = choose_move_kv(params.row_bytes, params.num_pairs);
  const MoveKvKernelParams kernel_params{params, config.columns, config.staged};
  const dim3 grid(static_cast<unsigned>(config.blocks_per_plane),
                  static_cast<unsigned>(params.num_planes));
  return launch_dependent(config.threads == 256 ? move_kv_kernel<256> : move_kv_kernel<512>, grid,
                          config.threads, config.shared_bytes, stream, kernel_params);
}

}  // namespace coppice::kernels
