#include "kernels/common/launch.h"
#include "kernels/rope/gqa_rope.cuh"

namespace coppice::kernels {

cudaError_t gqa_rope_and_write_kv(const GqaRopeParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) return cudaErrorInvalidValue;
  const auto kernel = p.head_dim == 64    ? gqa_rope_kernel<1>
                      : p.head_dim == 128 ? gqa_rope_kernel<2>
                                          : gqa_rope_kernel<4>;
  return launch_dependent(kernel, dim3(static_cast<unsigned>(p.num_rows)), kGqaRopeWarps * 32, 0,
                          stream, p);
}

}  // namespace coppice::kernels
