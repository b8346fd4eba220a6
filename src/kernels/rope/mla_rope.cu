#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/norm/rms_norm_config.h"
#include "kernels/rope/mla_rope.cuh"

namespace coppice::kernels {

cudaError_t mla_rope_and_write_kv(const MlaRopeParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  const int64_t strides = p.q_pe_row_stride | p.q_pe_head_stride | p.kv_a_row_stride;
  if ((p.kv_lora_rank | p.rope_dim | strides) % 8 != 0) return cudaErrorInvalidValue;
  const int norm_threads = rms_norm_threads(p.kv_lora_rank);
  // A thread per eight values of the queries and the key; the split does not touch the bits.
  const int rope_threads =
      std::clamp(((p.num_heads + 1) * p.rope_dim / 8 + 31) / 32 * 32, 32, 1024 - norm_threads);
  return launch_dependent(mla_rope_kernel, dim3(static_cast<unsigned>(p.num_rows)),
                          norm_threads + rope_threads, 0, stream, p, norm_threads);
}

}  // namespace coppice::kernels
