#include "kernels/common/launch.h"
#include "kernels/norm/rms_norm.cuh"
#include "kernels/norm/rms_norm_config.h"

namespace coppice::kernels {

cudaError_t rms_norm(const RmsNormParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  if (p.hidden_size % 8 != 0 || p.hidden_size > 65536) return cudaErrorInvalidValue;
  const int threads = rms_norm_threads(p.hidden_size);
  const int vectors = (p.hidden_size / 8 + threads - 1) / threads;
  const auto kernel = vectors <= 1   ? rms_norm_kernel<1>
                      : vectors <= 2 ? rms_norm_kernel<2>
                      : vectors <= 4 ? rms_norm_kernel<4>
                                     : rms_norm_kernel<8>;
  return launch_dependent(kernel, dim3(static_cast<unsigned>(p.num_rows)), threads, 0, stream, p);
}

}  // namespace coppice::kernels
