#include "kernels/moe/repack_experts.cuh"

namespace coppice::kernels {

cudaError_t repack_experts(const RepackExpertsParams& params, cudaStream_t stream) {
  const int outputs = params.packed_up ? 2 * params.rows : params.rows;
  const ExpertBlobShape shape = expert_blob_shape(outputs, params.inputs);
  const dim3 grid(shape.blocks * shape.steps * kStepCells, params.num_experts);
  repack_experts_kernel<<<grid, 32, 0, stream>>>(params, shape, expert_blob_bytes(shape));
  return cudaGetLastError();
}

}  // namespace coppice::kernels
