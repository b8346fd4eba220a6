#include "kernels/kv/gather_rows.cuh"

namespace coppice::kernels {

cudaError_t gather_rows(const GatherRowsParams& params, cudaStream_t stream) {
  if (params.row_bytes < 0 || params.row_bytes % 2 != 0 || params.count < 0 ||
      params.count > 65535) {
    return cudaErrorInvalidValue;
  }
  if (params.count == 0 || params.row_bytes == 0) return cudaSuccess;
  const uint64_t bits =
      reinterpret_cast<uint64_t>(params.src) | reinterpret_cast<uint64_t>(params.out) |
      static_cast<uint64_t>(params.src_stride_bytes) |
      static_cast<uint64_t>(params.out_stride_bytes) | static_cast<uint64_t>(params.row_bytes);
  const int bytes = choose_gather_bytes(bits);
  const int words = params.row_bytes / bytes;
  const int parts = (words + 4 * kGatherThreads - 1) / (4 * kGatherThreads);
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(params.count));
  auto* kernel = bytes == 16
                     ? gather_rows_kernel<uint4>
                     : (bytes == 4 ? gather_rows_kernel<uint32_t> : gather_rows_kernel<uint16_t>);
  return launch_dependent(kernel, grid, dim3(kGatherThreads), 0, params, stream);
}

}  // namespace coppice::kernels
