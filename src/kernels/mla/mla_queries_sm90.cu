#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/mla/mla_queries.cuh"

namespace coppice::kernels {

namespace {

using MlaQueriesKernel = void (*)(MlaQueriesParams, MlaQueriesMaps);

// 1536 outputs of eight heads are cut into four segments, fewer into eight.
MlaQueriesKernel pick_kernel(const MlaQueriesCut& cut) {
  if (cut.segments != 4) return mla_queries_kernel<8, false>;
  return cut.together ? mla_queries_kernel<4, true> : mla_queries_kernel<4, false>;
}

}  // namespace

cudaError_t mla_queries(const MlaQueriesParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  if (p.num_rows < 0 || p.num_rows > kMlaQueriesMaxRows || p.num_heads <= 0 ||
      (p.qkv_a_stride | p.q_pe_row_stride | p.q_pe_head_stride) % 8 != 0)
    return cudaErrorInvalidValue;
  const int outputs = p.num_heads * (128 + 64);
  const MlaQueriesCut cut = mla_queries_cut(p.num_rows, p.num_heads);
  MlaQueriesMaps maps;
  cudaError_t error = encode_matrix_map(&maps.q_b, p.q_b, outputs, kMlaQueriesInputs,
                                        kMlaQueriesInputs, kMlaQueriesTile, 64);
  if (error != cudaSuccess) return error;
  error = encode_matrix_map(&maps.k_absorbed, p.k_absorbed, int64_t{p.num_heads} * 512, 128, 128,
                            64, 64);
  if (error != cudaSuccess) return error;
  return launch_clusters(pick_kernel(cut),
                         dim3(static_cast<unsigned>(mla_queries_blocks(p.num_heads))),
                         kMlaQueriesCluster, kMlaQueriesThreads,
                         mla_queries_shared_bytes(p.num_rows, cut), stream, p, maps);
}

}  // namespace coppice::kernels
